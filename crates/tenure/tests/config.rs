//! Settings from everywhere, and what is said about bad ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use tenure::{Admin, Config, Error, Store, ValidationConfig};

fn file(text: &str) -> Result<Config, Error> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Config::from_file(file.path())
}

#[test]
fn a_file_sets_what_it_names_and_nothing_else() {
    let text = "dsn: postgres://localhost/app\nschema: jobs\nmax_connections: 4\nmax_read_ct: 9\n\
                validation_config:\n  max_depth: 5\n";
    let config = file(text).unwrap();
    assert_eq!((config.schema.as_deref(), config.max_connections, config.max_read_ct), (Some("jobs"), Some(4), 9));
    assert_eq!(config.default_max_batch_size, 100);
    assert_eq!(config.validation_config, ValidationConfig { max_depth: Some(5), ..ValidationConfig::default() });
}

#[test]
fn a_bad_file_is_named_with_what_is_wrong() {
    for (text, wrong) in [
        ("schema: x\n", "missing field `dsn`"),
        ("dsn: a.db\nbatchsize: 3\n", "unknown field `batchsize`"),
        ("dsn: a.db\nmax_read_ct: many\n", "max_read_ct"),
        ("dsn: a.db\nmax_read_ct: -1\n", "setting 'max_read_ct': must be at least 1"),
        ("dsn: a.db\nschema: x\n", "setting 'schema': only PostgreSQL has schemas"),
    ] {
        let error = file(text).unwrap_err();
        assert!(matches!(error, Error::InvalidConfig { .. }));
        assert!(error.to_string().contains(wrong), "{error}");
    }
    assert!(Config::from_file("/nowhere/tenure.yaml").unwrap_err().to_string().contains("/nowhere/tenure.yaml"));
}

#[test]
fn an_error_about_a_file_repeats_none_of_its_values() {
    for text in [
        "postgres://me:s3cret@db/app\n",
        "dsn = postgres://me:s3cret@db/app\n",
        "host=db password=s3cret\n",
        "me:s3cret@db/app\n",
        "'host=db password=\\\"s3cret\\\"'\n",
        "- postgres://me:s3cret@db/app\n",
        "dsn: [postgres://me:s3cret@db/app]\n",
        "dsn: {url: 'host=db password=s3cret'}\n",
        "postgres://me:s3cret@db/app: 1\n",
        "? host=db password=s3cret\n: 1\n",
        "dsn: a.db\nmax_read_ct: host=db password=s3cret\n",
        "dsn: a.db\nvalidation_config: me:s3cret@db/app\n",
        "dsn: 'postgres://me:s3cret@db/app\n",
        "dsn: *s3cret\n",
    ] {
        let error = file(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{text}: {error}");
    }
    let error = file("dsn: a.db\nmax_read_ct: s3cret\n").unwrap_err().to_string();
    assert!(error.contains("max_read_ct: invalid type: string, expected i32 at line 2 column 14"), "{error}");
}

#[test]
fn the_environment_sets_every_setting() {
    let variables = |name: &str| {
        let value = match name {
            "TENURE_DSN" => "postgres://localhost/app",
            "TENURE_SCHEMA" => "s",
            "TENURE_MAX_CONNECTIONS" => "7",
            "TENURE_CONNECTION_TIMEOUT" => "2",
            "TENURE_DEFAULT_BATCH_SIZE" => "8",
            "TENURE_DEFAULT_LOCK_TIME" => "9",
            "TENURE_MAX_READ_CT" => "10",
            "TENURE_HEARTBEAT_INTERVAL" => "11",
            "TENURE_MAX_PAYLOAD_BYTES" => "12",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let config = Config::from_variables(variables).unwrap();
    assert_eq!((config.schema.as_deref(), config.max_connections), (Some("s"), Some(7)));
    assert_eq!((config.connection_timeout_seconds, config.default_max_batch_size), (Some(2), 8));
    assert_eq!((config.default_lock_time_seconds, config.max_read_ct), (9, 10));
    assert_eq!((config.heartbeat_interval_seconds, config.validation_config.max_payload_bytes), (11, 12));
    let bad = |name: &str| if name == "TENURE_MAX_READ_CT" { Some("-x".to_owned()) } else { variables(name) };
    let error = Config::from_variables(bad).unwrap_err();
    assert_eq!(error.to_string(), "setting 'TENURE_MAX_READ_CT': '-x' is not a number that fits");
}

#[tokio::test]
async fn connecting_checks_settings_and_dsns() {
    for (config, field) in [
        (Config { default_max_batch_size: 0, ..Config::from_dsn(":memory:") }, "default_max_batch_size"),
        (Config { default_lock_time_seconds: 0, ..Config::from_dsn(":memory:") }, "default_lock_time_seconds"),
        (Config { heartbeat_interval_seconds: 0, ..Config::from_dsn(":memory:") }, "heartbeat_interval_seconds"),
        (Config::from_dsn(":memory:").with_max_connections(3), "max_connections"),
        (Config::from_dsn("postgres://x/y").with_max_connections(0), "max_connections"),
        (Config::from_dsn(":memory:").with_max_read_ct(0), "max_read_ct"),
    ] {
        let error = Admin::new(&config).await.unwrap_err();
        assert!(matches!(&error, Error::InvalidConfig { field: named, .. } if named == field), "{error:?}");
    }
    let error = Store::connect("mysql://root:hunter2@host/db").await.unwrap_err();
    assert!(matches!(&error, Error::UnsupportedDsn(text) if text.contains("mysql") && !text.contains("hunter2")));
    let error = Store::connect("turso://host.example?auth_token=hunter2").await.unwrap_err();
    assert!(matches!(&error, Error::UnsupportedDsn(text) if !text.contains("hunter2")), "{error:?}");
    assert!(!std::path::Path::new("host.example?auth_token=hunter2").exists());
    // Refused at once, and by name.
    let started = std::time::Instant::now();
    let error = Store::connect("postgres://user:hunter2@127.0.0.1:1/db").await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("127.0.0.1:1: connection refused"), "{error}");
    assert!(started.elapsed() < std::time::Duration::from_secs(5) && !format!("{error:?}").contains("hunter2"));
}

#[test]
fn debug_output_of_a_configuration_has_no_password() {
    for dsn in ["postgres://me:s3cret@db/app?password=s3cret", "host=db password=s3cret", "me:s3cret@db/app"] {
        let shown = format!("{:?}", tenure::Config::from_dsn(dsn));
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
