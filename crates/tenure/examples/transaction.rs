//! The order and its message, both or neither: enqueue in a transaction of your own.
//! `cargo run -p tenure --example transaction`
//!
//! The same on PostgreSQL: `enqueue_in_postgres` with a `tokio_postgres::Transaction`, `enqueue_in_sqlx` with sqlx, or
//! `select tenure.enqueue('shipping', '…')` from any language.

use tenure::{Admin, Consumer, EnqueueOptions, Producer, Store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("shop.db");
    let store = Store::connect(&path.display().to_string()).await?;
    store.install().await?;
    Admin::on(&store).create_queue("shipping").await?;
    let producer = Producer::on(&store, "shipping", "my-host", 1).await?;
    let consumer = Consumer::on(&store, "shipping", "my-host", 2).await?;

    let mut shop = rusqlite::Connection::open(&path)?;
    shop.execute_batch("create table orders (id integer primary key, shipped integer not null default 0)")?;

    let transaction = shop.transaction()?;
    transaction.execute("insert into orders (id) values (1)", [])?;
    producer.enqueue_in_sqlite(&transaction, &[1], &EnqueueOptions::default())?;
    transaction.rollback()?;
    println!("after the rollback: {} messages", consumer.dequeue().await?.len());

    let transaction = shop.transaction()?;
    transaction.execute("insert into orders (id) values (2)", [])?;
    producer.enqueue_in_sqlite(&transaction, &[2], &EnqueueOptions::default())?;
    transaction.commit()?;

    let message = consumer.dequeue().await?.remove(0);
    let order: i64 = message.json()?;
    // The work and its completion are one: however often this is tried, the order is shipped once.
    let transaction = shop.transaction()?;
    transaction.execute("update orders set shipped = shipped + 1 where id = ?1", [order])?;
    consumer.complete_in_sqlite(&transaction, &message)?;
    transaction.commit()?;
    println!("order {order} is shipped");
    Ok(())
}
