//! The cloud that the node runs in: what its metadata server tells goes into node metadata and locality.
//!
//! `agent` runs [`detect`] while the other rooms start. A metadata server that answers gets up to five seconds; where nothing
//! speaks for a cloud (no DMI strings, no variable) its address has a few milliseconds to accept a connection, so that a node
//! without one does not start later, and Amazon's a few more, so that a pod which may not ask it hardly does.

mod aws;
mod azure;
mod gcp;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use tokio::time::Instant;

use crate::{
    base::{BoxFuture, apart, first},
    config::{Errors, Vars},
    net::{dial, http1::client::Request},
};

/// How long detection may take where a cloud answers (Istio's figure).
const LIMIT: Duration = Duration::from_secs(5);
/// How long the metadata address may take to accept a connection where nothing else speaks for a cloud.
const GRACE: Duration = Duration::from_millis(20);
/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(2);
/// More than any metadata server answers.
const MAX_BODY: usize = 1 << 20;

/// What is known about the cloud; empty where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Platform {
    /// Metadata `PLATFORM_METADATA`.
    pub metadata: BTreeMap<String, String>,
    /// Region, zone, subzone.
    pub locality: [String; 3],
    /// Labels of a virtual machine that is no Kubernetes node.
    pub labels: BTreeMap<String, String>,
}

/// Which cloud, where to ask.
#[derive(Debug, Clone)]
pub struct Config {
    choice: Choice,
    gcp: gcp::Config,
    /// `host:port` of the metadata servers, in the order in which they are tried.
    servers: Vec<String>,
    /// Folder of the firmware's strings.
    dmi: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Nothing,
    Aws,
    Azure,
    Gcp,
    Detect,
}

impl Config {
    /// `CLOUD_PLATFORM` and the variables of Google's cloud.
    ///
    /// # Errors
    /// None today: an unknown CLOUD_PLATFORM means that the cloud is looked for, as in Istio.
    pub fn from_vars(vars: &Vars) -> Result<Config, Errors> {
        let gcp = gcp::Config::from_vars(vars);
        let choice = match vars.text_or("CLOUD_PLATFORM", "").to_ascii_lowercase().as_str() {
            "none" => Choice::Nothing,
            "aws" => Choice::Aws,
            "azure" => Choice::Azure,
            "gcp" => Choice::Gcp,
            _ if gcp.is_given() => Choice::Gcp,
            _ => Choice::Detect,
        };
        let mut servers = vec!["169.254.169.254:80".to_owned()];
        if vars.ip_addresses().iter().any(std::net::IpAddr::is_ipv6) {
            servers.push("[fd00:ec2::254]:80".to_owned());
        }
        Ok(Config { choice, gcp, servers, dmi: "/sys/class/dmi/id".into() })
    }
}

/// Asks the cloud about this node; never longer than five seconds.
pub async fn detect(config: &Config) -> Platform {
    let deadline = Instant::now() + LIMIT;
    let choice = match config.choice {
        Choice::Detect => apart(|| look(config, deadline)).await,
        choice => choice,
    };
    match choice {
        Choice::Aws => apart(|| aws::ask(&config.servers, deadline)).await,
        Choice::Azure => apart(|| azure::ask(&config.servers[0], deadline)).await,
        Choice::Gcp => apart(|| gcp::ask(&config.gcp, deadline)).await,
        Choice::Nothing | Choice::Detect => Platform::default(),
    }
}

/// Which cloud it is, by the firmware's strings first.
async fn look(config: &Config, deadline: Instant) -> Choice {
    let firmware = |file: &str| std::fs::read_to_string(config.dmi.join(file)).unwrap_or_default();
    let vendor = firmware("sys_vendor");
    if vendor.contains("Microsoft Corporation") {
        return Choice::Azure;
    }
    let patience = if vendor.contains("Amazon") {
        Instant::now() + aws::PATIENCE
    } else if firmware("product_name").starts_with("Google") {
        deadline
    } else {
        Instant::now() + GRACE
    };
    let Some(server) = reachable(&config.servers, patience).await else { return Choice::Nothing };
    let (google, amazon) = tokio::join!(gcp::is_there(server, deadline), aws::is_there(server, deadline));
    match (google, amazon) {
        (true, _) => Choice::Gcp,
        (false, true) => Choice::Aws,
        (false, false) => Choice::Nothing,
    }
}

/// The first server that accepts a connection; all are asked at once, so that a silent one takes no time from the others.
async fn reachable(servers: &[String], deadline: Instant) -> Option<&str> {
    let mut dials: Vec<BoxFuture<'_, Option<&str>>> = Vec::new();
    for server in servers {
        dials.push(Box::pin(async move {
            let (host, port) = crate::config::split_host_port(server).ok()?;
            dial::tcp(host, port.parse().ok()?, deadline).await.ok().map(|_| server.as_str())
        }));
    }
    while !dials.is_empty() {
        let reached = first(&mut dials).await;
        if reached.is_some() {
            return reached;
        }
    }
    None
}

/// The text of an answer with status 200.
async fn text(request: Result<Request, crate::net::http1::Error>, deadline: Instant) -> Option<String> {
    let left = deadline.saturating_duration_since(Instant::now()).min(REQUEST);
    let mut response = request.ok()?.timeout(left).send(None).await.ok()?;
    if response.status != 200 {
        return None;
    }
    let body = response.body.collect(MAX_BODY).await.ok()?;
    String::from_utf8(body).ok()
}
