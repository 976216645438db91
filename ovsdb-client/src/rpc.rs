//! JSON-RPC 1.0 as OVSDB uses it (RFC 7047 section 4): making requests, taking messages apart.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Any message, with its parts still as text.
#[derive(Debug, Deserialize)]
pub(crate) struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// A message by what it is for.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// The server wants an answer.
    Request { id: &'a RawValue, method: Cow<'a, str>, params: &'a RawValue },
    /// The server tells something.
    Notification { method: Cow<'a, str>, params: &'a RawValue },
    /// Answer to our request: its id and the result or error.
    Reply { id: u64, outcome: Result<&'a RawValue, &'a RawValue> },
    /// Answer to a request that is not ours, or that we do not number.
    Stray,
}

impl<'a> Message<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        let envelope: Envelope<'a> =
            serde_json::from_str(text).map_err(|error| format!("message is not JSON-RPC: {error}"))?;
        if let Some(method) = envelope.method {
            let params = envelope.params.ok_or_else(|| format!("message {method:?} without params"))?;
            return Ok(match envelope.id {
                Some(id) => Self::Request { id, method, params },
                None => Self::Notification { method, params },
            });
        }
        let Some(Ok(id)) = envelope.id.map(|id| id.get().parse()) else {
            return Ok(Self::Stray);
        };
        let outcome = match envelope.error {
            Some(error) => Err(error),
            None => Ok(envelope.result.unwrap_or(RawValue::NULL)),
        };
        Ok(Self::Reply { id, outcome })
    }
}

/// Text of a request.
pub(crate) fn request(
    id: u64,
    method: &str,
    params: &(impl Serialize + ?Sized),
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Request<'a, P: ?Sized> {
        id: u64,
        method: &'a str,
        params: &'a P,
    }
    serde_json::to_vec(&Request { id, method, params })
}

/// Text of a notification.
pub(crate) fn notification(
    method: &str,
    params: &(impl Serialize + ?Sized),
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Notification<'a, P: ?Sized> {
        id: (),
        method: &'a str,
        params: &'a P,
    }
    serde_json::to_vec(&Notification { id: (), method, params })
}

/// Text of a reply.
pub(crate) fn reply(id: &RawValue, outcome: Result<&RawValue, &str>) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Reply<'a> {
        id: &'a RawValue,
        result: Option<&'a RawValue>,
        error: Option<&'a str>,
    }
    serde_json::to_vec(&Reply { id, result: outcome.ok(), error: outcome.err() })
}
