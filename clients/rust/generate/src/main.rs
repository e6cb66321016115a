//! Writes the Rust messages and stubs of a schema: `headway-generate SCHEMA_FOLDER INTO`.

use std::env::args_os;
use std::error::Error;
use std::fs::read_dir;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = args_os().skip(1).map(PathBuf::from);
    let (Some(schema), Some(into)) = (arguments.next(), arguments.next()) else {
        return Err("usage: headway-generate SCHEMA_FOLDER INTO".into());
    };
    let mut files = read_dir(schema.join("headway/v1"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    files.sort(); // the order of the folder must not show in the output
    let described = protox::compile(&files, [&schema])?;
    tonic_prost_build::configure().build_server(false).out_dir(into).compile_fds(described)?;
    Ok(())
}
