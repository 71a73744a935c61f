//! Google's metadata server, and what variables say in its place.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::Value as Json;
use tokio::time::Instant;

use super::{MAX_BODY, Platform, REQUEST, reachable, text};
use crate::{
    base::apart,
    config::Vars,
    net::{
        http1::client::Request,
        tls::{self, Policy, Protocol, Roots, SystemStore},
    },
};

const COMPUTE: &str = "https://compute.googleapis.com/compute/v1";
const SCOPE: &str = "https://www.googleapis.com/auth/compute.readonly";

/// Metadata keys and where the server has them.
const KEYS: [(&str, &str); 7] = [
    ("gcp_project", "project/project-id"),
    ("gcp_project_number", "project/numeric-project-id"),
    ("gcp_gke_cluster_name", "instance/attributes/cluster-name"),
    ("gcp_gce_instance", "instance/name"),
    ("gcp_gce_instance_id", "instance/id"),
    ("gcp_gce_instance_template", "instance/attributes/instance-template"),
    ("gcp_gce_instance_created_by", "instance/attributes/created-by"),
];

/// What variables say.
#[derive(Debug, Clone, Default)]
pub(super) struct Config {
    /// Metadata that is given and need not be asked for.
    given: BTreeMap<String, String>,
    is_given: bool,
    zone: String,
    /// `GCE_METADATA_HOST`; empty for the usual address.
    host: String,
    on_kubernetes: bool,
    pub(super) resolv_conf: PathBuf,
}

impl Config {
    pub(super) fn from_vars(vars: &Vars) -> Config {
        let text = vars.text_or("GCP_METADATA", "");
        let is_given = !text.is_empty();
        let (quota, zone) = (vars.text_or("GCP_QUOTA_PROJECT", ""), vars.text_or("GCP_ZONE", ""));
        let mut given = BTreeMap::new();
        if is_given {
            let parts: Vec<&str> = text.split('|').collect();
            if let [project, number, cluster, location] = parts[..] {
                for (key, value) in [
                    ("gcp_project", project),
                    ("gcp_project_number", number),
                    ("gcp_gke_cluster_name", cluster),
                    ("gcp_location", location),
                ] {
                    given.insert(key.to_owned(), value.to_owned());
                }
            }
            for (key, value) in [("gcp_quota_project", &quota), ("gcp_zone", &zone)] {
                given.insert(key.to_owned(), value.clone());
            }
            given.retain(|_, value| !value.is_empty());
            add_cluster_url(&mut given);
        }
        Config {
            given,
            is_given,
            zone: if is_given { zone } else { String::new() },
            host: vars.text_or("GCE_METADATA_HOST", ""),
            on_kubernetes: vars.text("KUBERNETES_SERVICE_HOST").is_some(),
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }

    /// Whether variables say that this is Google's cloud.
    pub(super) fn is_given(&self) -> bool {
        self.is_given || !self.host.is_empty()
    }

    fn server(&self) -> String {
        match self.host.as_str() {
            "" => "169.254.169.254:80".to_owned(),
            host if crate::config::split_host_port(host).is_ok() => host.to_owned(),
            host => format!("{host}:80"),
        }
    }
}

/// Whether this is an instance with Google's server: only it says so in a header.
pub(super) async fn is_there(server: &str, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now()).min(REQUEST);
    let Ok(request) = Request::get(&format!("http://{server}/")) else { return false };
    let response = request.header("Metadata-Flavor", "Google").timeout(left).send(None).await;
    response.is_ok_and(|response| response.headers.get("Metadata-Flavor") == Some("Google"))
}

pub(super) async fn ask(config: &Config, deadline: Instant) -> Platform {
    let server = config.server();
    let mut platform = Platform { metadata: config.given.clone(), ..Platform::default() };
    let known = known_zone(config);
    // Given metadata lacks at most the zone, and says nothing about whether there is a server.
    let patience = if config.is_given { deadline.min(Instant::now() + super::aws::PATIENCE) } else { deadline };
    let server = match &known {
        Some(_) if config.is_given => None,
        _ => reachable(std::slice::from_ref(&server), patience).await,
    };
    if let (Some(server), false) = (server, config.is_given) {
        platform.metadata = metadata(server, deadline).await;
    }
    let zone = match (known, server) {
        (Some(zone), _) => zone,
        (None, Some(server)) => instance_zone(server, deadline).await.unwrap_or_default(),
        (None, None) => String::new(),
    };
    if let Some(region) = region(&zone) {
        platform.locality = [region.to_owned(), zone, String::new()];
    }
    let on_kubernetes = config.on_kubernetes || platform.metadata.contains_key("gcp_gke_cluster_name");
    if let (Some(server), false) = (server, on_kubernetes) {
        platform.labels = labels(server, &platform.metadata, deadline).await.unwrap_or_default();
    }
    platform
}

async fn metadata(server: &str, deadline: Instant) -> BTreeMap<String, String> {
    let [a, b, c, d, e, f, g] = KEYS.map(|(_, path)| apart(|| get(server, path, deadline)));
    let location = location(server, deadline);
    let (a, b, c, d, e, f, g, location) = tokio::join!(a, b, c, d, e, f, g, location);
    let values = [a, b, c, d, e, f, g];
    let keys = KEYS.iter().map(|(key, _)| *key).chain(["gcp_location"]);
    let found = keys.zip(values.into_iter().chain([location]));
    let found = found.filter_map(|(key, value)| Some((key.to_owned(), value.filter(|value| !value.is_empty())?)));
    let mut metadata: BTreeMap<String, String> = found.collect();
    add_cluster_url(&mut metadata);
    metadata
}

async fn get(server: &str, path: &str, deadline: Instant) -> Option<String> {
    let request = Request::get(&format!("http://{server}/computeMetadata/v1/{path}"));
    let body = text(request.map(|request| request.header("Metadata-Flavor", "Google")), deadline).await?;
    Some(body.trim().to_owned())
}

/// The cluster's location, else the instance's zone.
async fn location(server: &str, deadline: Instant) -> Option<String> {
    match get(server, "instance/attributes/cluster-location", deadline).await {
        Some(location) => Some(location),
        None => instance_zone(server, deadline).await,
    }
}

/// The server answers `projects/<number>/zones/<zone>`.
async fn instance_zone(server: &str, deadline: Instant) -> Option<String> {
    get(server, "instance/zone", deadline).await?.rsplit('/').next().map(str::to_owned)
}

fn add_cluster_url(metadata: &mut BTreeMap<String, String>) {
    let part = |key: &str| metadata.get(key).cloned();
    if let (Some(project), Some(location), Some(cluster)) =
        (part("gcp_project"), part("gcp_location"), part("gcp_gke_cluster_name"))
    {
        let url =
            format!("https://container.googleapis.com/v1/projects/{project}/locations/{location}/clusters/{cluster}");
        metadata.insert("gcp_gke_cluster_url".to_owned(), url);
    }
}

/// The zone by the variable or the resolver's search list; otherwise the server is asked.
fn known_zone(config: &Config) -> Option<String> {
    if !config.zone.is_empty() {
        return Some(config.zone.clone());
    }
    zone_of_search_list(&std::fs::read_to_string(&config.resolv_conf).unwrap_or_default())
}

/// `<zone>.c.<project>.internal` on the first `search` line that has one.
fn zone_of_search_list(resolv_conf: &str) -> Option<String> {
    resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("search")).find_map(|domains| {
        domains.split_ascii_whitespace().find_map(|domain| {
            let (zone, rest) = domain.trim_end_matches('.').split_once(".c.")?;
            let is_google = rest.ends_with(".internal") && region(zone).is_some() && !zone.contains('.');
            is_google.then(|| zone.to_owned())
        })
    })
}

/// `us-central1` of `us-central1-f`; nothing for what is no zone.
fn region(zone: &str) -> Option<&str> {
    let parts: Vec<&str> = zone.split('-').collect();
    let is_zone = parts.len() == 3 && parts.iter().all(|part| !part.is_empty());
    is_zone.then(|| zone.rsplit_once('-').map(|(region, _)| region)).flatten()
}

/// Labels of the virtual machine, by the API of Google's compute engine.
async fn labels(
    server: &str,
    metadata: &BTreeMap<String, String>,
    deadline: Instant,
) -> Option<BTreeMap<String, String>> {
    let (project, location, instance) =
        (metadata.get("gcp_project")?, metadata.get("gcp_location")?, metadata.get("gcp_gce_instance")?);
    let token = get(server, &format!("instance/service-accounts/default/token?scopes={SCOPE}"), deadline).await?;
    let token: Json = serde_json::from_str(&token).ok()?;
    let url = format!("{COMPUTE}/projects/{project}/zones/{location}/instances/{instance}");
    let left = deadline.saturating_duration_since(Instant::now());
    let request =
        Request::get(&url).ok()?.header("Authorization", format!("Bearer {}", token["access_token"].as_str()?));
    let roots = Roots::System(SystemStore::default());
    let tls = tls::client_config(&roots, None, Policy::default(), Protocol::Http1).ok()?;
    let mut response = request.timeout(left).send(Some(&tls)).await.ok().filter(|response| response.status == 200)?;
    let instance: Json = serde_json::from_slice(&response.body.collect(MAX_BODY).await.ok()?).ok()?;
    let labels = instance["labels"].as_object()?.iter();
    Some(labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones() {
        assert_eq!(region("us-central1-f"), Some("us-central1"));
        for text in ["us-central1", "", "--", "a-b-c-d"] {
            assert_eq!(region(text), None, "{text}");
        }
        let search = "nameserver 1.1.1.1\nsearch a.svc google.internal us-central1-f.c.test-proj.internal\n";
        assert_eq!(zone_of_search_list(search).as_deref(), Some("us-central1-f"));
        assert_eq!(zone_of_search_list("domain us-central1-f.c.test-proj.internal\nsearch x"), None);
        assert_eq!(zone_of_search_list("search us-central1.c.p.internal us-central1-f.c.p.example"), None);
    }

    #[test]
    fn variables() {
        let of = |pairs: &[(&str, &str)]| Config::from_vars(&Vars::from_pairs(pairs.iter().copied()));
        let config = of(&[("GCP_METADATA", "p|7|c|l"), ("GCP_QUOTA_PROJECT", "q"), ("GCP_ZONE", "eu-west1-b")]);
        assert_eq!(config.given.len(), 7);
        let url = "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c";
        assert_eq!(config.given["gcp_gke_cluster_url"], url);
        let config = of(&[("GCP_METADATA", "p|7|c"), ("GCP_QUOTA_PROJECT", "q")]);
        assert_eq!(config.given, [("gcp_quota_project".to_owned(), "q".to_owned())].into());
        let config = of(&[("GCP_ZONE", "eu-west1-b"), ("GCP_QUOTA_PROJECT", "q")]);
        assert!(config.given.is_empty() && !config.is_given() && config.zone.is_empty());
        assert_eq!(of(&[("GCE_METADATA_HOST", "h")]).server(), "h:80");
        assert_eq!(of(&[("GCE_METADATA_HOST", "h:8080")]).server(), "h:8080");
    }
}
