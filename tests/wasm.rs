//! Wasm plugins from a scripted web server and registry, through the rewrite, into the cache and out of it again.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use footman::{
    base::{Clock, Trigger},
    config::Vars,
    proto::{
        envoy::{
            config::core::v3::{
                AsyncDataSource, HttpUri, RemoteDataSource, TypedExtensionConfig, async_data_source, data_source,
            },
            extensions::wasm::v3::{EnvironmentVariables, PluginConfig, VmConfig, Wasm as Filter},
        },
        google::protobuf::{Any, Duration},
    },
    telemetry::metrics::Registry,
    wasm::{Config, Rewriter, Wasm},
    wires::ecds::{Mended, Resource, Rewritten, Update},
};
use prost::Message;
use ring::{digest, rand::SystemRandom, signature};
use serde_json::json;
use tokio::net::TcpStream;

use crate::support::{
    TempDir,
    web::{Response, Web},
    within,
};

const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const HTTP_WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const HTTP_RBAC: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const WASM_LAYER: &str = "application/vnd.module.wasm.content.layer.v1+wasm";

/// A plugin as a test describes it.
#[derive(Default, Clone)]
struct Plugin<'a> {
    url: &'a str,
    sha256: &'a str,
    env: &'a [(&'a str, &'a str)],
}

impl Plugin<'_> {
    fn any(&self) -> Bytes {
        let timeout = Some(Duration { seconds: 20, nanos: 0 });
        let http_uri = Some(HttpUri { uri: self.url.to_owned(), timeout, ..HttpUri::default() });
        let remote = RemoteDataSource { http_uri, sha256: self.sha256.to_owned() };
        let key_values = self.env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let vm = VmConfig {
            code: Some(AsyncDataSource { specifier: Some(async_data_source::Specifier::Remote(remote)) }),
            environment_variables: Some(EnvironmentVariables { key_values, ..EnvironmentVariables::default() }),
            ..VmConfig::default()
        };
        let filter = Filter { config: Some(PluginConfig { vm_config: Some(vm), ..PluginConfig::default() }) };
        let typed_config = Some(Any { type_url: HTTP_WASM.to_owned(), value: filter.encode_to_vec().into() });
        let extension = TypedExtensionConfig { name: "plugin".to_owned(), typed_config };
        Any { type_url: EXTENSION.to_owned(), value: extension.encode_to_vec().into() }.encode_to_vec().into()
    }
}

/// What became of it: the local file, or `None` for a stand-in.
fn local(bytes: &Bytes) -> Option<PathBuf> {
    let any = Any::decode(bytes.clone()).unwrap();
    let typed = TypedExtensionConfig::decode(any.value).unwrap().typed_config.unwrap();
    if typed.type_url == HTTP_RBAC {
        return None;
    }
    let vm = Filter::decode(typed.value).unwrap().config.unwrap().vm_config.unwrap();
    assert_eq!(vm.environment_variables, None);
    match vm.code.unwrap().specifier.unwrap() {
        async_data_source::Specifier::Local(source) => match source.specifier.unwrap() {
            data_source::Specifier::Filename(path) => Some(path.into()),
            other => panic!("{other:?}"),
        },
        async_data_source::Specifier::Remote(remote) => panic!("still remote: {remote:?}"),
    }
}

/// The room in a folder of its own.
struct Room {
    wasm: Wasm,
    rewriter: Rewriter,
    registry: Registry,
}

fn room(folder: &Path, env: &[(&str, &str)]) -> Room {
    let data = folder.join("data");
    let own = [("FOOTMAN_WASM_CACHE_DIR", data.to_str().unwrap())];
    let config = Config::from_vars(&Vars::from_pairs(own.iter().chain(env).copied())).unwrap();
    let registry = Registry::default();
    let wasm = Wasm::bind(config, &registry, Clock::System);
    Room { rewriter: wasm.rewriter(), wasm, registry }
}

impl Room {
    async fn rewrite(&self, plugins: &[Plugin<'_>]) -> Rewritten {
        let resources = plugins.iter().map(Plugin::any).collect();
        within("the rewrite", self.rewriter.rewrite(Update { resources, delta: None })).await.unwrap()
    }

    /// Rewrites and accepts one plugin; gives its module's bytes.
    async fn module(&self, plugin: &Plugin<'_>) -> Option<Vec<u8>> {
        let Rewritten { resources, accepted } = self.rewrite(std::slice::from_ref(plugin)).await;
        accepted();
        local(&resources[0].bytes).map(|path| fs::read(path).unwrap())
    }

    async fn repaired(&self, resource: Resource) -> Mended {
        within("the repair", resource.repair.unwrap()).await
    }

    /// Ends the room as a stopping agent does: the index is on disk afterwards.
    async fn stop(self) {
        let (trigger, drain) = Trigger::new();
        trigger.start();
        within("the end", self.wasm.run(drain)).await;
    }
}

fn module(seed: u8) -> Vec<u8> {
    [b"\0asm\x01\0\0\0\0\x05\x04seed".as_slice(), &[0, 2, 1, seed]].concat()
}

fn sha256(bytes: &[u8]) -> String {
    digest::digest(&digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn blob(web: &Web, repository: &str, bytes: &[u8]) -> serde_json::Value {
    let digest = format!("sha256:{}", sha256(bytes));
    web.put(&format!("/v2/{repository}/blobs/{digest}"), bytes);
    json!({"mediaType": WASM_LAYER, "digest": digest, "size": bytes.len()})
}

/// Puts a manifest under a tag and under its digest, which is given.
fn manifest(web: &Web, repository: &str, tag: &str, media_type: &str, document: &serde_json::Value) -> String {
    let body = document.to_string().into_bytes();
    let digest = sha256(&body);
    let media_type = media_type.to_owned();
    for version in [tag.to_owned(), format!("sha256:{digest}")] {
        let (body, media_type) = (body.clone(), media_type.clone());
        web.route(&format!("/v2/{repository}/manifests/{version}"), move |_| {
            Response::new(200, body.clone()).header("Content-Type", media_type.clone())
        });
    }
    digest
}

/// A registry with one image, and the image's digest.
fn registry(wasm: &[u8]) -> (Web, String) {
    let web = Web::start();
    web.put("/v2/", "{}");
    let image = json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [blob(&web, "team/filter", wasm)]});
    let digest = manifest(&web, "team/filter", "v1", MANIFEST, &image);
    (web, digest)
}

fn image(web: &Web, version: &str) -> String {
    format!("oci://{}/team/filter{version}", web.address)
}

#[tokio::test]
async fn one_fetch_for_all_who_ask_at_once() {
    let (folder, web) = (TempDir::new(), Web::start());
    let url = web.put("/a.wasm", module(1));
    let room = room(&folder, &[]);
    web.set_open(false);
    let plugins = vec![Plugin { url: &url, ..Plugin::default() }; 20];
    let (rewritten, ()) = tokio::join!(room.rewrite(&plugins), async {
        web.asked(1).await;
        web.set_open(true);
    });
    assert!(rewritten.resources.iter().all(|resource| fs::read(local(&resource.bytes).unwrap()).unwrap() == module(1)));
    assert_eq!(web.seen(), ["GET /a.wasm"]);
}

#[tokio::test]
async fn restart_serves_from_disk_and_notices_damage() {
    let folder = TempDir::new();
    let (registry, _) = registry(&module(2));
    let web = Web::start();
    let (page, tag) = (web.put("/a.wasm", module(1)), image(&registry, ":v1"));
    let plugins = [Plugin { url: &page, ..Plugin::default() }, Plugin { url: &tag, ..Plugin::default() }];
    let first = room(&folder, &[]);
    for (plugin, expected) in plugins.iter().zip([1, 2]) {
        assert_eq!(first.module(plugin).await, Some(module(expected)));
    }
    first.stop().await;
    let asked = (web.seen().len(), registry.seen().len());
    let second = room(&folder, &[]);
    for (plugin, expected) in plugins.iter().zip([1, 2]) {
        assert_eq!(second.module(plugin).await, Some(module(expected)));
    }
    assert_eq!((web.seen().len(), registry.seen().len()), asked, "fetched again");
    let path = local(&second.rewrite(&plugins[..1]).await.resources[0].bytes).unwrap();
    second.stop().await;
    fs::write(&path, module(9)).unwrap();
    let third = room(&folder, &[]);
    assert_eq!(third.module(&plugins[0]).await, Some(module(1)));
    // Damaged again, this time under the running agent.
    fs::write(&path, module(9)).unwrap();
    assert_eq!(third.module(&plugins[0]).await, Some(module(1)));
    assert_eq!(web.seen().len(), 3);
}

#[tokio::test]
async fn unused_modules_are_purged_at_each_interval_and_never_without_one() {
    let (folder, web) = (TempDir::new(), Web::start());
    let url = web.put("/a.wasm", module(1));
    for (interval, left) in [("0s", 1), ("1s", 0)] {
        let room = room(&folder, &[("WASM_PURGE_INTERVAL", interval), ("WASM_MODULE_EXPIRY", "0s")]);
        drop(room.rewrite(&[Plugin { url: &url, ..Plugin::default() }]).await);
        let (_trigger, drain) = Trigger::new();
        tokio::time::pause();
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), room.wasm.run(drain)).await;
        tokio::time::resume();
        assert_eq!(room.rewriter.debug()["modules"].as_array().unwrap().len(), left, "{interval}");
    }
}

#[tokio::test]
async fn registry_that_is_not_there_costs_only_what_was_never_fetched() {
    let folder = TempDir::new();
    let (registry, _) = registry(&module(1));
    let (known, new) = (image(&registry, ":v1"), image(&registry, ":v2"));
    let first = room(&folder, &[]);
    assert_eq!(first.module(&Plugin { url: &known, ..Plugin::default() }).await, Some(module(1)));
    first.stop().await;
    let address = registry.address;
    drop(registry);
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within("the end of the registry", closed).await;
    let second = room(&folder, &[]);
    assert_eq!(second.module(&Plugin { url: &known, ..Plugin::default() }).await, Some(module(1)), "from disk");
    let resources = second.rewrite(&[Plugin { url: &new, ..Plugin::default() }]).await.resources;
    assert_eq!(local(&resources[0].bytes), None);
    let failing = second.rewriter.debug()["failing"].to_string();
    assert!(failing.contains(&new) && failing.contains("refused"), "{failing}");
}

#[tokio::test]
async fn failed_plugin_gets_a_stand_in_and_is_repaired() {
    let (folder, web) = (TempDir::new(), Web::start());
    let broken = Arc::new(AtomicUsize::new(2));
    let left = broken.clone();
    let url = web.route("/a.wasm", move |_| match left.load(Ordering::SeqCst) {
        0 => Response::new(200, module(1)),
        count => {
            left.store(count - 1, Ordering::SeqCst);
            Response::new(404, "")
        }
    });
    let room = room(&folder, &[]);
    let plugin = Plugin { url: &url, ..Plugin::default() };
    let Rewritten { mut resources, accepted } = room.rewrite(std::slice::from_ref(&plugin)).await;
    assert_eq!(local(&resources[0].bytes), None);
    assert_eq!(room.rewriter.debug()["failing"][0]["url"], url);
    let mended = room.repaired(resources.remove(0)).await;
    // Envoy's word on the stand-in may come as late as this.
    accepted();
    assert_eq!(room.rewriter.debug()["running"], json!([]));
    (mended.accepted)();
    assert_eq!(room.rewriter.debug()["running"][0]["name"], "plugin");
    let path = local(&mended.bytes).unwrap();
    assert_eq!(fs::read(path).unwrap(), module(1));
    assert_eq!(room.rewriter.debug()["failing"], json!([]));
    assert_eq!(web.seen().len(), 3);
}

#[tokio::test]
async fn dropped_repair_asks_no_more() {
    let (folder, web) = (TempDir::new(), Web::start());
    let url = web.route("/a.wasm", |_| Response::new(404, ""));
    let room = room(&folder, &[]);
    let rewritten = room.rewrite(&[Plugin { url: &url, ..Plugin::default() }]).await;
    drop(rewritten);
    assert_eq!(room.rewriter.debug()["failing"], json!([]));
}

#[tokio::test]
async fn broken_configuration_is_told_without_any_fetch() {
    let (folder, web) = (TempDir::new(), Web::start());
    let url = web.put("/a.wasm", module(1));
    let good = Plugin { url: &url, ..Plugin::default() }.any();
    let resources = vec![Bytes::from_static(b"\x0a\x01x"), good, Bytes::from_static(b"\xff")];
    let room = room(&folder, &[]);
    let error = room.rewriter.rewrite(Update { resources, delta: None }).await.err().unwrap();
    assert!(error.starts_with("2 errors occurred:\n\t* failed to unmarshal extension config resource: "), "{error}");
    assert_eq!((error.lines().count(), error.ends_with("\n\n")), (3, false), "{error:?}");
    assert!(web.seen().is_empty());
}

#[tokio::test]
async fn checksum_of_an_image_is_its_digest_or_its_indexs() {
    let folder = TempDir::new();
    let (web, digest) = registry(&module(1));
    let child = json!({"mediaType": MANIFEST, "digest": format!("sha256:{digest}"), "size": 1, "platform": {"os": "linux", "architecture": "amd64"}});
    let index = manifest(&web, "team/filter", "multi", INDEX, &json!({"mediaType": INDEX, "manifests": [child]}));
    let room = room(&folder, &[]);
    let other = "0".repeat(64);
    let multi = image(&web, ":multi");
    assert_eq!(room.module(&Plugin { url: &multi, sha256: &other, ..Plugin::default() }).await, None);
    assert!(!web.seen().iter().any(|asked| asked.contains("/blobs/")), "downloaded in spite of the checksum");
    for (url, sha256) in
        [(&multi, &index), (&multi, &digest), (&image(&web, &format!("@sha256:{index}")), &String::new())]
    {
        assert_eq!(room.module(&Plugin { url, sha256, ..Plugin::default() }).await, Some(module(1)));
    }
    assert_eq!(web.seen().iter().filter(|asked| asked.contains("/blobs/")).count(), 1);
}

#[tokio::test]
async fn private_image_stays_with_who_may_have_it() {
    let folder = TempDir::new();
    let (web, digest) = registry(&module(1));
    let authorization = format!("Basic {}", STANDARD.encode("user:hunter2"));
    let denied = || Response::new(401, "").header("WWW-Authenticate", "Basic realm=\"here\"");
    let wanted = authorization.clone();
    // One that does not say what it wants gets the login as well.
    web.route("/v2/", move |request| match request.headers.get("authorization") {
        Some(given) if given == wanted => Response::new(200, "{}"),
        _ => Response::new(401, ""),
    });
    let path = format!("/v2/team/filter/manifests/sha256:{digest}");
    let body = fetch_body(&web, &path).await;
    web.route(&path, move |request| match request.headers.get("authorization") {
        Some(given) if given == authorization => Response::new(200, body.clone()).header("Content-Type", MANIFEST),
        Some(_) => denied(),
        None => Response::new(403, ""),
    });
    let room = room(&folder, &[("HOME", "/nowhere")]);
    let pinned = image(&web, &format!("@sha256:{digest}"));
    let secret =
        |login: &str| json!({"auths": {web.address.to_string(): {"auth": STANDARD.encode(login)}}}).to_string();
    let (right, wrong) = (secret("user:hunter2"), secret("user:hunter3"));
    let with = |secret: &'_ str| [("ISTIO_META_WASM_IMAGE_PULL_SECRET".to_owned(), secret.to_owned())];
    for (secret, expected) in [(&right, Some(module(1))), (&wrong, None), (&right, Some(module(1)))] {
        let env = with(secret);
        let env = [(env[0].0.as_str(), env[0].1.as_str())];
        assert_eq!(room.module(&Plugin { url: &pinned, env: &env, ..Plugin::default() }).await, expected);
    }
    assert_eq!(room.module(&Plugin { url: &pinned, ..Plugin::default() }).await, None, "without any login");
    let shown = room.rewriter.debug().to_string();
    assert!(!shown.contains("hunter") && !shown.contains(&STANDARD.encode("user:hunter2")), "{shown}");
    room.stop().await;
    let index = fs::read_to_string(folder.join("data/index.json")).unwrap();
    assert!(!index.contains("hunter") && !index.contains(&STANDARD.encode("user:hunter2")), "{index}");
}

async fn fetch_body(web: &Web, path: &str) -> Vec<u8> {
    let url = format!("http://{}{path}", web.address);
    let request = footman::net::http1::client::Request::get(&url).unwrap();
    request.send(None).await.unwrap().body.collect(1 << 20).await.unwrap()
}

#[tokio::test]
async fn only_signed_images_under_a_key() {
    let folder = TempDir::new();
    let (web, digest) = registry(&module(1));
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let file = folder.write("cosign.pub", key.public_key_pem());
    let page = web.put("/a.wasm", module(2));
    let checksum = sha256(&module(2));
    let room = room(&folder, &[("FOOTMAN_WASM_PUBLIC_KEY", file.to_str().unwrap())]);
    let tag = image(&web, ":v1");
    let plugin = Plugin { url: &tag, ..Plugin::default() };
    assert_eq!(room.module(&plugin).await, None, "no signature at all");
    let random = SystemRandom::new();
    let sign = |payload: &[u8]| {
        let algorithm = &signature::ECDSA_P256_SHA256_ASN1_SIGNING;
        let pair = signature::EcdsaKeyPair::from_pkcs8(algorithm, &key.serialize_der(), &random).unwrap();
        STANDARD.encode(pair.sign(&random, payload).unwrap())
    };
    let about = |digest: &str| {
        json!({"critical": {"image": {"docker-manifest-digest": format!("sha256:{digest}")}}}).to_string()
    };
    for (named, expected) in [("f".repeat(64), None), (digest.clone(), Some(module(1)))] {
        let payload = about(&named);
        let mut layer = blob(&web, "team/filter", payload.as_bytes());
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": sign(payload.as_bytes())});
        let signatures = json!({"mediaType": MANIFEST, "layers": [layer]});
        manifest(&web, "team/filter", &format!("sha256-{digest}.sig"), MANIFEST, &signatures);
        assert_eq!(room.module(&plugin).await, expected, "signature of {named}");
    }
    assert_eq!(room.module(&Plugin { url: &page, ..Plugin::default() }).await, None, "neither signature nor checksum");
    assert_eq!(room.module(&Plugin { url: &page, sha256: &checksum, ..Plugin::default() }).await, Some(module(2)));
}

#[tokio::test]
async fn results_are_counted_by_istios_names() {
    let (folder, web) = (TempDir::new(), Web::start());
    let (good, junk) = (web.put("/a.wasm", module(1)), web.put("/junk", "junk"));
    let missing = format!("http://{}/missing", web.address);
    let room = room(&folder, &[]);
    let plugins = [&good, &junk, &missing].map(|url| Plugin { url, ..Plugin::default() });
    room.rewrite(&plugins).await;
    let other = "0".repeat(64);
    room.rewrite(&[Plugin { url: &good, sha256: &other, ..Plugin::default() }]).await;
    let text = room.registry.text();
    for line in [
        "istio_agent_wasm_remote_fetch_count{result=\"success\"} 1",
        "istio_agent_wasm_remote_fetch_count{result=\"fetch_failure\"} 1",
        "istio_agent_wasm_remote_fetch_count{result=\"download_failure\"} 1",
        "istio_agent_wasm_remote_fetch_count{result=\"checksum_mismatched\"} 1",
        "istio_agent_wasm_config_conversion_count{result=\"success\"} 1",
        "istio_agent_wasm_config_conversion_count{result=\"fetch_failure\"} 3",
        "istio_agent_wasm_cache_entries 1",
        "istio_agent_wasm_config_conversion_duration_count 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}
