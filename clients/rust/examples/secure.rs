//! Connects by TLS, with a certificate and a token.

use std::error::Error;
use std::{env, fs};

use headway::v1::CreateRequest;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let authorities = Certificate::from_pem(fs::read(env::var("HEADWAY_CA")?)?);
    let shown = Identity::from_pem(fs::read(env::var("HEADWAY_CERT")?)?, fs::read(env::var("HEADWAY_KEY")?)?);
    let tls = ClientTlsConfig::new().ca_certificate(authorities).identity(shown); // if the service wants a certificate

    let path = env::var("HEADWAY_TOKEN_FILE")?;
    let token = move || fs::read_to_string(&path).ok(); // asked for each call: a token may expire
    let client = headway::connect_tls(None, |endpoint| endpoint.tls_config(tls.clone()))?.with_token(token);

    client.call(CreateRequest { queue: "rust-secure".into(), ..Default::default() }).await?;
    println!("created over TLS");
    Ok(())
}
