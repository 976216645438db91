//! Results of a transaction.

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Columns, Operation};
use crate::{Datum, Error};

/// Reads the reply: one result an operation, `null` after the one that failed, one more for a failed commit
/// (RFC 7047 section 4.1.3).
pub(super) fn read(operations: &[Operation], reply: &RawValue) -> Result<Vec<OpResult>, Error> {
    let replies: Vec<Option<WireResult>> = serde_json::from_str(reply.get())
        .map_err(|error| Error::Protocol(format!("reply to transact: {error}")))?;
    let mut results = Vec::with_capacity(operations.len());
    for (index, reply) in replies.into_iter().enumerate() {
        let reply = reply.unwrap_or_default();
        if let Some(error) = reply.error {
            let mut details = reply.details.unwrap_or_default();
            if let Some(reason) = reply.io_error {
                details = format!("{details}: {reason}");
            }
            return Err(match operations.get(index) {
                Some(operation) => Error::Operation { index, op: operation.label(), error, details },
                None => Error::Commit { error, details },
            });
        }
        let uuid = reply.uuid.as_ref().and_then(Datum::as_uuid);
        results.push(OpResult { count: reply.count, uuid, rows: reply.rows.unwrap_or_default() });
    }
    if results.len() < operations.len() {
        return Err(Error::Protocol(format!(
            "{} results for {} operations",
            results.len(),
            operations.len()
        )));
    }
    results.truncate(operations.len());
    Ok(results)
}

#[derive(Default, Deserialize)]
struct WireResult {
    error: Option<String>,
    details: Option<String>,
    /// The system's reason, which ovsdb-server adds to an `I/O error` (lib/ovsdb-error.c, `ovsdb_error_to_json`).
    #[serde(rename = "io-error")]
    io_error: Option<String>,
    count: Option<u64>,
    uuid: Option<Datum>,
    rows: Option<Vec<Columns>>,
}

/// Result of one operation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpResult {
    /// Rows touched by `update`, `mutate` and `delete`.
    pub count: Option<u64>,
    /// Identifier of the row of `insert`.
    pub uuid: Option<Uuid>,
    /// Rows read by `select`.
    pub rows: Vec<Columns>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_servers_disk_tells_the_systems_reason() {
        let reply = r#"[{"details":"conf.db: write failed","error":"I/O error","io-error":"No space left on device"}]"#;
        let reply = RawValue::from_string(reply.to_owned()).unwrap();
        let error = read(&[], &reply).unwrap_err();
        assert!(error.is_servers_disk(), "{error}");
        assert!(
            error.to_string().ends_with("I/O error: conf.db: write failed: No space left on device"),
            "{error}"
        );
    }
}
