//! Azure's instance metadata service.

use serde_json::Value as Json;
use tokio::time::Instant;

use super::{MAX_BODY, Platform, REQUEST};
use crate::net::http1::client::Request;

/// The oldest version of the service that is asked for.
const OLDEST_VERSION: &str = "2019-08-15";

pub(super) async fn ask(server: &str, deadline: Instant) -> Platform {
    let versions = get(server, "", deadline).await;
    let newest = versions["newest-versions"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let version = newest.max().filter(|version| *version > OLDEST_VERSION).unwrap_or(OLDEST_VERSION);
    let instance = get(server, &format!("?api-version={version}"), deadline).await;
    platform(&instance["compute"])
}

/// Reads the member `compute`; anything that is not text counts as empty.
fn platform(compute: &Json) -> Platform {
    let text = |key: &str| compute[key].as_str().unwrap_or_default().to_owned();
    let mut platform = Platform { locality: [text("location"), text("zone"), String::new()], ..Platform::default() };
    for (key, value) in
        [("azure_name", text("name")), ("azure_location", text("location")), ("azure_vmId", text("vmId"))]
    {
        if !value.is_empty() {
            platform.metadata.insert(key.to_owned(), value);
        }
    }
    for (name, value) in tags(compute) {
        platform.metadata.insert(format!("azure_{name}"), value);
    }
    platform
}

/// `tagsList` where it is there, since values in `tags` cannot have semicolons.
fn tags(compute: &Json) -> Vec<(String, String)> {
    if let Some(list) = compute["tagsList"].as_array() {
        let text = |tag: &Json, key: &str| tag[key].as_str().unwrap_or_default().to_owned();
        let named = list.iter().map(|tag| (text(tag, "name"), text(tag, "value")));
        return named.filter(|(name, _)| !name.is_empty()).collect();
    }
    let text = compute["tags"].as_str().unwrap_or_default();
    text.split(';')
        .filter(|tag| !tag.is_empty())
        .map(|tag| tag.split_once(':').unwrap_or((tag, "")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// An answer as JSON whatever its status (asking without a version is answered with 400); null when there is none.
async fn get(server: &str, query: &str, deadline: Instant) -> Json {
    let left = deadline.saturating_duration_since(Instant::now()).min(REQUEST);
    let asked = async {
        let request = Request::get(&format!("http://{server}/metadata/instance{query}")).ok()?;
        let mut response = request.header("Metadata", "True").timeout(left).send(None).await.ok()?;
        let body = response.body.collect(MAX_BODY).await.ok()?;
        serde_json::from_slice(&body).ok()
    };
    asked.await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_of_both_forms() {
        let of = |compute: Json| {
            platform(&compute).metadata.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(json!({"tags": "Department;Team:a:b"})), "azure_Department= azure_Team=a:b");
        let both = json!({"tags": "x:y", "tagsList": [{"name": "t", "value": "a;b"}], "name": "vm", "vmId": "7"});
        assert_eq!(of(both), "azure_name=vm azure_t=a;b azure_vmId=7");
        assert_eq!(of(json!({"name": 7, "tags": {}, "tagsList": "no", "location": "eu"})), "azure_location=eu");
        assert_eq!(of(Json::Null), "");
    }
}
