//! Compiles proto/*.proto, without protoc, to types that speak protobuf and protobuf's JSON.
//!
//! Invariant: how a field is written in JSON follows from its descriptor alone, so the .proto files say everything. A
//! kind of field for which there is no rule yet stops the build.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};

const TIMESTAMP: &str = ".google.protobuf.Timestamp";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/querator.proto", "proto/duh.proto"], ["proto"])?;
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("descriptors.bin"), files.encode_to_vec())?;

    let mut config = prost_build::Config::new();
    config.bytes(["."]).btree_map(["."]).extern_path(TIMESTAMP, "crate::wire::Timestamp");
    config.message_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]");
    config.message_attribute(".", "#[serde(default, deny_unknown_fields)]");
    for file in files.file.iter().filter(|file| file.package() != "google.protobuf") {
        for message in &file.message_type {
            for field in &message.field {
                let path = format!(".{}.{}.{}", file.package(), message.name(), field.name());
                let helper = helper(message, field).ok_or_else(|| format!("build.rs has no JSON rule for {path}"))?;
                config.field_attribute(path, format!("#[serde({}{helper})]", names(field)));
            }
        }
    }
    config.compile_fds(files)?;
    Ok(())
}

/// The names of a field in JSON: it is written under one, and read under all of them.
fn names(field: &FieldDescriptorProto) -> String {
    let camel = lower_camel(field.name());
    let json = field.json_name.as_deref().unwrap_or(&camel);
    let mut names = format!("rename = \"{json}\", skip_serializing_if = \"crate::wire::json::is_default\"");
    for alias in BTreeSet::from([field.name(), camel.as_str()]) {
        if alias != json {
            names.push_str(&format!(", alias = \"{alias}\""));
        }
    }
    names
}

/// Which part of `wire::json` reads, and for bytes also writes, the value of a field; None when none of them knows how.
fn helper(message: &DescriptorProto, field: &FieldDescriptorProto) -> Option<String> {
    let repeated = field.label() == Label::Repeated;
    let (role, name) = match field.r#type() {
        // An Option: null is None already.
        Type::Message if field.type_name() == TIMESTAMP && !repeated => return Some(String::new()),
        Type::Message if is_map(message, field) => ("deserialize_with", "null_is_default"),
        Type::Message if repeated => ("deserialize_with", "messages"),
        Type::String => ("deserialize_with", "null_is_default"),
        Type::Bool if !repeated => ("deserialize_with", "null_is_default"),
        Type::Int32 if !repeated => ("deserialize_with", "int32"),
        Type::Bytes if !repeated => ("with", "base64"),
        _ => return None,
    };
    Some(format!(", {role} = \"crate::wire::json::{name}\""))
}

/// Protobuf writes a map as a list of messages that are declared inside the one that has the map.
fn is_map(message: &DescriptorProto, field: &FieldDescriptorProto) -> bool {
    message.nested_type.iter().any(|nested| {
        let is_entry = nested.options.as_ref().is_some_and(|options| options.map_entry());
        is_entry && field.type_name().ends_with(&format!(".{}.{}", message.name(), nested.name()))
    })
}

/// The JSON name that protobuf gives a field that does not name one itself.
fn lower_camel(name: &str) -> String {
    let mut camel = String::new();
    let mut after_underscore = false;
    for letter in name.chars() {
        if letter != '_' {
            camel.push(if after_underscore { letter.to_ascii_uppercase() } else { letter });
        }
        after_underscore = letter == '_';
    }
    camel
}
