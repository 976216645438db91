//! Short forms for tests with the northbound database.

use ovsdb_client::nb::LogicalSwitch;
use ovsdb_client::{Client, Datum, Error, MonitorSpec, OpResult, Replica, Row, Transaction, Uuid};

use super::soon;

/// Name of the database.
pub const NB: &str = "OVN_Northbound";
/// Schema file of the northbound database.
pub const NB_SCHEMA: &str = "ovn-nb.ovsschema";

pub async fn run(client: &Client, txn: Transaction) -> Result<Vec<OpResult>, Error> {
    soon("transact", client.transact(txn)).await
}

/// Runs a transaction of one operation.
pub async fn one(client: &Client, build: impl FnOnce(&mut Transaction)) -> Result<OpResult, Error> {
    let mut txn = Transaction::new();
    build(&mut txn);
    run(client, txn).await.map(|mut results| results.remove(0))
}

pub async fn add_switch(client: &Client, name: &str) -> Uuid {
    one(client, |txn| {
        txn.insert(LogicalSwitch::TABLE, [("name", Datum::from(name))]);
    })
    .await
    .unwrap()
    .uuid
    .unwrap()
}

pub async fn switches(client: &Client) -> Replica {
    soon("monitor", client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&[]))).await.unwrap()
}

pub fn one_switch(name: &str) -> Transaction {
    let mut txn = Transaction::new();
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from(name))]);
    txn
}
