//! What the server sends during a session: replies and notifications, each handed to whom it concerns.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Live, Pending, State};
use crate::Error;
use crate::replica::{Load, MonitorProtocol};

/// How ovsdb-server refuses a method it does not have.
const UNKNOWN_METHOD: &str = "\"unknown method\"";

impl Live {
    pub(super) fn reply(
        &mut self,
        id: u64,
        outcome: Result<&RawValue, &RawValue>,
        state: &mut State,
    ) -> Result<(), String> {
        match self.pending.remove(&id) {
            None => tracing::debug!(database = self.options.database, id, "reply to an unknown request"),
            Some(Pending::Ignored) => {}
            Some(Pending::Call { method, done, .. }) => {
                let outcome = outcome
                    .map(ToOwned::to_owned)
                    .map_err(|error| Error::Rpc { method, error: error.get().to_owned() });
                // Fails when the caller is gone, which is fine.
                let _ = done.send(outcome);
            }
            Some(Pending::Lock { id, name }) => self.lock_reply(id, &name, outcome, state)?,
            Some(Pending::Monitor { id, protocol }) => self.monitor_reply(id, protocol, outcome, state)?,
        }
        Ok(())
    }

    fn settled(&mut self) {
        self.unsettled = self.unsettled.saturating_sub(1);
    }

    fn lock_reply(
        &mut self,
        id: u64,
        name: &str,
        outcome: Result<&RawValue, &RawValue>,
        state: &mut State,
    ) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Answer {
            locked: bool,
        }
        self.settled();
        let Some(lock) = state.locks.get_mut(name).filter(|lock| lock.id == id) else { return Ok(()) };
        match outcome {
            Ok(result) => {
                let answer: Answer =
                    serde_json::from_str(result.get()).map_err(|error| format!("reply to lock: {error}"))?;
                lock.steal = false;
                lock.owned.send_replace(answer.locked);
                if let Some(done) = lock.done.take() {
                    let _ = done.send(Ok(()));
                }
                Ok(())
            }
            Err(error) => match state.locks.remove(name).and_then(|lock| lock.done) {
                Some(done) => {
                    let _ = done
                        .send(Err(Error::Rpc { method: "lock".to_owned(), error: error.get().to_owned() }));
                    Ok(())
                }
                None => Err(format!("lock {name:?} was refused: {}", error.get())),
            },
        }
    }

    fn monitor_reply(
        &mut self,
        id: u64,
        protocol: MonitorProtocol,
        outcome: Result<&RawValue, &RawValue>,
        state: &mut State,
    ) -> Result<(), String> {
        if let Err(error) = outcome
            && error.get() == UNKNOWN_METHOD
        {
            let older = match protocol {
                MonitorProtocol::MonitorCondSince => Some(MonitorProtocol::MonitorCond),
                MonitorProtocol::MonitorCond => Some(MonitorProtocol::Monitor),
                MonitorProtocol::Monitor => None,
            };
            if let Some(older) = older {
                tracing::debug!(
                    database = self.options.database,
                    ?protocol,
                    error = error.get(),
                    "falling back to an older monitor method"
                );
                self.protocol = self.protocol.min(older);
                return self.request_monitor(id, older, state);
            }
        }
        self.settled();
        let Some(monitored) = state.monitors.get_mut(&id) else { return Ok(()) };
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                let Some(done) = monitored.done.take() else {
                    return Err(format!("monitor was refused: {}", error.get()));
                };
                let _ = done
                    .send(Err(Error::Rpc { method: "monitor".to_owned(), error: error.get().to_owned() }));
                state.monitors.remove(&id);
                return Ok(());
            }
        };
        let core = &monitored.core;
        let bad = |error| format!("reply to monitor: {error}");
        if protocol == MonitorProtocol::MonitorCondSince {
            let (found, last, updates): (bool, String, &RawValue) =
                serde_json::from_str(result.get()).map_err(bad)?;
            core.apply(updates, if found { Load::Update } else { Load::Full }, protocol).map_err(bad)?;
            core.set_last_transaction(Some(last));
        } else {
            core.apply(result, Load::Full, protocol).map_err(bad)?;
            core.set_last_transaction(None);
        }
        core.set_synced(true);
        if let Some(done) = monitored.done.take() {
            let _ = done.send(Ok(()));
        }
        Ok(())
    }

    pub(super) fn notification(
        &mut self,
        method: &str,
        params: &RawValue,
        state: &mut State,
    ) -> Result<(), String> {
        let bad = |error| format!("{method}: {error}");
        match method {
            "update" | "update2" => {
                let (monitor, updates): (u64, &RawValue) = serde_json::from_str(params.get()).map_err(bad)?;
                if self.server.update(monitor, updates)? {
                    return self.server.check(&self.options, &mut state.newest);
                }
                let protocol =
                    if method == "update" { MonitorProtocol::Monitor } else { MonitorProtocol::MonitorCond };
                if let Some(monitored) = state.monitors.get(&monitor) {
                    monitored.core.apply(updates, Load::Update, protocol).map_err(bad)?;
                }
            }
            "update3" => {
                let (monitor, last, updates): (u64, String, &RawValue) =
                    serde_json::from_str(params.get()).map_err(bad)?;
                if let Some(monitored) = state.monitors.get(&monitor) {
                    monitored
                        .core
                        .apply(updates, Load::Update, MonitorProtocol::MonitorCondSince)
                        .map_err(bad)?;
                    monitored.core.set_last_transaction(Some(last));
                }
            }
            "locked" | "stolen" => {
                let (name,): (String,) = serde_json::from_str(params.get()).map_err(bad)?;
                if let Some(lock) = state.locks.get(&name) {
                    lock.owned.send_replace(method == "locked");
                }
            }
            // The schema changed or the database went: start over.
            "monitor_canceled" => {
                return Err("the server canceled a monitor (its database changed)".to_owned());
            }
            other => {
                tracing::debug!(database = self.options.database, method = other, "unknown notification")
            }
        }
        Ok(())
    }
}
