//! Instances and executions, for people who look after them.

use std::collections::HashSet;

use crate::db::{Conn, decode};
use crate::error::{Error, Kind, Result};
use crate::sql::{
    EXECUTION_GET, EXECUTION_LIST, EXECUTION_PRUNABLE, EXECUTION_PRUNE, INSTANCE_CENSUS, INSTANCE_CHILDREN,
    INSTANCE_DELETE, INSTANCE_DEPTHS, INSTANCE_GET, INSTANCE_LIST, INSTANCE_LOCK, INSTANCE_ROOTS, INSTANCE_STATS,
    INSTANCE_STRAY, INSTANCE_TREE, Statement,
};
use crate::store::Store;
use crate::types::{ExecutionInfo, InstanceCensus, InstanceInfo, InstanceStats, Micros, Prune, Removed};
use crate::value::{Column, Fields, Value};

impl Store {
    /// Instances, newest first; with a status, those whose current execution has it.
    pub async fn instance_list(&self, status: Option<&str>) -> Result<Vec<String>> {
        self.rows(INSTANCE_LIST, vec![status.into()], |row| row.text()).await
    }

    /// What is known about an instance; none when there is no such instance.
    pub async fn instance_get(&self, id: &str) -> Result<Option<InstanceInfo>> {
        let read = |row: &mut Fields<'_>| {
            Ok(InstanceInfo {
                id: row.text()?,
                name: row.text()?,
                version: row.text()?,
                execution: row.int()?,
                status: row.text()?,
                output: row.text_or_null()?,
                created_at: row.int()?,
                updated_at: row.int()?,
                parent: row.text_or_null()?,
            })
        };
        self.row(INSTANCE_GET, vec![id.into()], read).await
    }

    /// Sizes of an instance; none when there is no such instance.
    pub async fn instance_stats(&self, id: &str) -> Result<Option<InstanceStats>> {
        let read = |row: &mut Fields<'_>| {
            Ok(InstanceStats {
                events: row.int_or_null()?.unwrap_or(0),
                bytes: row.int()?,
                first: row.text_or_null()?,
                keys: row.int()?,
                value_bytes: row.int()?,
            })
        };
        self.row(INSTANCE_STATS, vec![id.into()], read).await
    }

    /// Counts of everything.
    pub async fn instance_census(&self) -> Result<InstanceCensus> {
        let read = |row: &mut Fields<'_>| {
            Ok(InstanceCensus {
                instances: row.int()?,
                executions: row.int()?,
                events: row.int()?,
                running: row.int()?,
                completed: row.int()?,
                failed: row.int()?,
            })
        };
        self.only(INSTANCE_CENSUS, read).await
    }

    /// How many messages and how many activities nobody holds.
    pub async fn instance_depths(&self) -> Result<(i64, i64)> {
        self.only(INSTANCE_DEPTHS, |row| Ok((row.int()?, row.int()?))).await
    }

    /// Instances that this one started.
    pub async fn instance_children(&self, id: &str) -> Result<Vec<String>> {
        self.rows(INSTANCE_CHILDREN, vec![id.into()], |row| row.text()).await
    }

    /// An instance and all that descend from it, parents before children; empty when there is no such instance.
    pub async fn instance_tree(&self, id: &str) -> Result<Vec<String>> {
        self.rows(INSTANCE_TREE, vec![id.into()], |row| row.text()).await
    }

    /// Instances that ended (before a time) and that no other one started, those that ended first before the others.
    pub async fn instance_roots(&self, completed_before: Option<Micros>, limit: i64) -> Result<Vec<String>> {
        self.rows(INSTANCE_ROOTS, vec![completed_before.into(), Value::Int(limit)], |row| row.text()).await
    }

    /// Deletes instances with everything that belongs to them, all or none.
    ///
    /// # Errors
    /// `InvalidState` when one of them runs (unless forced), or has a child that is not among them.
    pub async fn instance_delete(&self, ids: Vec<String>, force: bool) -> Result<Removed> {
        self.db().transact(move |conn| Box::pin(async move { delete(conn, ids, force).await })).await
    }

    /// Executions of an instance in order.
    pub async fn execution_list(&self, instance: &str) -> Result<Vec<i64>> {
        self.rows(EXECUTION_LIST, vec![instance.into()], |row| row.int()).await
    }

    /// What is known about an execution.
    pub async fn execution_get(&self, instance: &str, id: i64) -> Result<Option<ExecutionInfo>> {
        let read = |row: &mut Fields<'_>| {
            Ok(ExecutionInfo {
                id: row.int()?,
                status: row.text()?,
                output: row.text_or_null()?,
                started_at: row.int()?,
                completed_at: row.int_or_null()?,
                events: row.int()?,
            })
        };
        self.row(EXECUTION_GET, vec![instance.into(), Value::Int(id)], read).await
    }

    /// Instances whose old executions may be pruned.
    pub async fn execution_prunable(&self, completed_before: Option<Micros>, limit: i64) -> Result<Vec<String>> {
        self.rows(EXECUTION_PRUNABLE, vec![completed_before.into(), Value::Int(limit)], |row| row.text()).await
    }

    /// Prunes old executions of an instance with their histories.
    pub async fn execution_prune(&self, instance: &str, prune: Prune) -> Result<Removed> {
        let params = [instance.into(), prune.completed_before.into(), prune.keep.into()];
        let act = self.db().write(move |conn| {
            Box::pin(async move {
                let rows = conn.query(EXECUTION_PRUNE, &params).await?;
                let mut row = rows[0].fields(EXECUTION_PRUNE.name);
                Ok(Removed { executions: row.int()?, events: row.int()?, ..Removed::default() })
            })
        });
        act.await
    }

    async fn rows<T: Send + 'static>(
        &self,
        statement: Statement,
        params: Vec<Value>,
        read: impl Fn(&mut Fields<'_>) -> Result<T> + Send + 'static,
    ) -> Result<Vec<T>> {
        self.db()
            .read(move |conn| Box::pin(async move { decode(statement, &conn.query(statement, &params).await?, read) }))
            .await
    }

    async fn row<T: Send + 'static>(
        &self,
        statement: Statement,
        params: Vec<Value>,
        read: impl Fn(&mut Fields<'_>) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        Ok(self.rows(statement, params, read).await?.pop())
    }

    /// The only row of a statement without parameters.
    async fn only<T: Send + 'static>(
        &self,
        statement: Statement,
        read: impl Fn(&mut Fields<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let row = self.row(statement, Vec::new(), read).await?;
        row.ok_or_else(|| Error::new(Kind::Corrupt, format!("statement {} returned nothing", statement.name)))
    }
}

async fn delete(conn: &mut Conn<'_>, ids: Vec<String>, force: bool) -> Result<Removed> {
    let column: Column = ids.iter().cloned().collect();
    let state = |message: String| Error::new(Kind::InvalidState, message);
    let locked = conn.each(INSTANCE_LOCK, &[], std::slice::from_ref(&column)).await?;
    let running = decode(INSTANCE_LOCK, &locked, |row| {
        let (id, named, running) = (row.text()?, row.bool()?, row.bool()?);
        Ok((named && running).then_some(id))
    })?;
    if let Some(id) = running.into_iter().flatten().next().filter(|_| !force) {
        return Err(state(format!("instance '{id}' is still running: cancel it first, or force its deletion")));
    }
    let going: HashSet<&String> = ids.iter().collect();
    let children = conn.each(INSTANCE_STRAY, &[], std::slice::from_ref(&column)).await?;
    for (child, parent) in decode(INSTANCE_STRAY, &children, |row| Ok((row.text()?, row.text()?)))? {
        if !going.contains(&child) {
            return Err(state(format!(
                "instance '{parent}' has the child '{child}', which would be an orphan: delete the whole tree"
            )));
        }
    }
    let mut removed = Removed::default();
    let counts = conn.each(INSTANCE_DELETE, &[], &[column]).await?;
    for count in decode(INSTANCE_DELETE, &counts, |row| {
        Ok(Removed { instances: row.int()?, executions: row.int()?, events: row.int()?, messages: row.int()? })
    })? {
        removed += count;
    }
    Ok(removed)
}
