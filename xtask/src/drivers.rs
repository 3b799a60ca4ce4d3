//! The SQL functions through the drivers of other languages: psycopg 2 and 3, asyncpg, node-postgres and JDBC. Each stores
//! payloads that a wrong overload would damage, compares what was stored, and ends the messages that were leased.

use std::path::Path;
use std::process::{Command, Stdio};

use tenure_cluster::{Cluster, Durability};

use crate::cargo::{Cargo, Result, root, succeed};

const PYTHON: [&str; 3] = ["psycopg2-binary", "psycopg[binary]", "asyncpg"];
const NODE: &str = "pg@8";
const JDBC: &str = "/usr/share/java/postgresql.jar";

pub(crate) fn run() -> Result<()> {
    let folder = root().join("target/drivers");
    install(&folder)?;
    Cargo::new(&["build", "--package", "tenure-server"]).run()?;
    let cluster = Cluster::start(Durability::None)?;
    for driver in ["psycopg2", "psycopg", "asyncpg", "node-postgres", "jdbc"] {
        // A database for each: none finds the messages of another.
        let database = format!("driver_{}", driver.replace('-', "_"));
        let dsn = cluster.create_database(&database)?;
        let script = |act: &str| {
            let mut command = script(&folder, driver);
            command.arg(act).env("PGHOST", "127.0.0.1").env("PGPORT", cluster.port().to_string());
            succeed(command.env("PGUSER", "postgres").env("PGDATABASE", &database))
        };
        let tenure = |args: &[&str]| {
            let mut command = Command::new(root().join("target/debug/tenure"));
            succeed(command.args(args).args(["--dsn", &dsn]).stdout(Stdio::null()))
        };
        // The demo makes the tables.
        tenure(&["demo", "--messages", "64"])?;
        tenure(&["queue", "create", "drivers"])?;
        script("enqueue")?;
        // The message with a key stays: only the library leases keys.
        tenure(&["lease", "drivers", "--count", "6"])?;
        script("complete")?;
        println!("{driver}: ok");
    }
    Ok(())
}

fn script(folder: &Path, driver: &str) -> Command {
    let scripts = root().join("xtask/drivers");
    match driver {
        "node-postgres" => {
            let mut command = Command::new("node");
            command.arg(scripts.join("node.cjs")).env("NODE_PATH", folder.join("node_modules"));
            command
        }
        "jdbc" => {
            let mut command = Command::new("java");
            command.args(["-cp", JDBC]).arg(scripts.join("Jdbc.java"));
            command
        }
        python => {
            let mut command = Command::new(folder.join("venv/bin/python"));
            command.arg(scripts.join("python.py")).arg(python);
            command
        }
    }
}

fn install(folder: &Path) -> Result<()> {
    let environment = folder.join("venv");
    if !environment.join("installed").exists() {
        std::fs::create_dir_all(folder)?;
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
        let mut pip = Command::new(environment.join("bin/python"));
        succeed(pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(PYTHON))?;
        std::fs::write(environment.join("installed"), "")?;
    }
    if !folder.join("node_modules/pg").exists() {
        succeed(Command::new("npm").args(["install", "--silent", "--no-save", "--prefix"]).arg(folder).arg(NODE))?;
    }
    if !Path::new(JDBC).exists() {
        succeed(Command::new("apt-get").args(["install", "--yes", "libpostgresql-jdbc-java"]))?;
    }
    Ok(())
}
