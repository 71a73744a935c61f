//! `footman check`: the binary itself, in a folder of its own, against a scripted istiod.

use std::{
    net::SocketAddr,
    process::{Command, Output},
};

use serde_json::Value as Json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::support::{TempDir, istiod::Istiod};

/// The folder of a pod whose istiod listens at `address`; extra variables on top.
struct Pod {
    folder: TempDir,
    env: Vec<(String, String)>,
}

impl Pod {
    fn new(discovery: &str) -> Pod {
        let folder = TempDir::new();
        folder.write("var/run/secrets/tokens/istio-token", "a-secret-token");
        let proxy_config = format!("discoveryAddress: {discovery}\nbinaryPath: bin/envoy\n");
        let env = [
            ("PROXY_CONFIG", proxy_config.as_str()),
            ("POD_NAME", "app-0"),
            ("POD_NAMESPACE", "ns1"),
            ("SERVICE_ACCOUNT", "sa1"),
            ("INSTANCE_IP", "127.0.0.1"),
            ("CLOUD_PLATFORM", "none"),
        ];
        Pod { folder, env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into() }
    }

    fn with(mut self, name: &str, value: &str) -> Pod {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    async fn check(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_footman"));
        command.arg("check").args(args).current_dir(&*self.folder).env_clear().envs(self.env.iter().cloned());
        // The scripted istiod runs on this thread's runtime.
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
    }

    async fn report(&self, args: &[&str]) -> (Json, i32) {
        let output = self.check(&[&["-o", "json"], args].concat()).await;
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (report, output.status.code().unwrap())
    }
}

fn states(report: &Json) -> Vec<(String, String)> {
    let steps = report["steps"].as_array().unwrap().iter();
    steps.map(|step| (step["step"].as_str().unwrap().to_owned(), step["state"].as_str().unwrap().to_owned())).collect()
}

#[tokio::test]
async fn everything_is_tried_and_works() {
    let istiod = Istiod::start().await;
    let pod = Pod::new(&format!("localhost:{}", istiod.address.port()));
    pod.folder.write("var/run/secrets/istio/root-cert.pem", istiod.ca.root_pem());
    let pod = pod.with("ISTIOD_SAN", "localhost");
    let (report, code) = pod.report(&["sidecar", "--request-certificate", "--oldflag"]).await;
    assert_eq!(code, 0, "{:#} {}", report["steps"], report["errors"]);
    assert_eq!(report["ok"], true);
    let states = states(&report);
    let (skipped, rest) = states.split_first().unwrap();
    assert_eq!(skipped.1, "skipped", "no Envoy is there");
    let names: Vec<&str> = rest.iter().map(|(name, _)| name.rsplit(": ").next().unwrap()).collect();
    assert_eq!(names, ["name", "connection", "TLS", "HTTP/2", "token", "certificate"]);
    assert!(rest.iter().all(|(_, state)| state == "ok"), "{rest:?}");
    let setting = |name: &str| {
        let found = report["settings"].as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap();
        (found["value"].as_str().unwrap().to_owned(), found["origin"].as_str().unwrap().to_owned())
    };
    assert_eq!(setting("binaryPath"), ("bin/envoy".into(), "PROXY_CONFIG:2".into()));
    assert_eq!(setting("statusPort"), ("15020".into(), "default".into()));
    assert_eq!(setting("POD_NAME"), ("app-0".into(), "env".into()));
    assert_eq!(setting("role"), ("sidecar".into(), "argument".into()));
}

#[tokio::test]
async fn what_cannot_be_reached_is_told_with_advice() {
    let istiod = Istiod::start().await;
    let stranger = Istiod::start().await;
    let pod = Pod::new(&format!("localhost:{}", istiod.address.port()));
    pod.folder.write("var/run/secrets/istio/root-cert.pem", stranger.ca.root_pem());
    let (report, code) = pod.report(&[]).await;
    assert_eq!(code, 1, "{report:#}");
    let failed: Vec<&Json> =
        report["steps"].as_array().unwrap().iter().filter(|step| step["state"] == "failed").collect();
    assert_eq!(failed.len(), 1, "{report:#}");
    assert!(failed[0]["step"].as_str().unwrap().ends_with("TLS"));
    assert!(failed[0]["advice"].as_str().unwrap().contains("XDS_ROOT_CA"));
    assert!(failed[0]["detail"].as_str().unwrap().contains("root-cert.pem"));
}

#[tokio::test]
async fn the_way_to_the_ca_matters_only_where_the_agent_serves_the_identity() {
    let pod = || Pod::new("localhost:1").with("XDS_ROOT_CA", "SYSTEM");
    let (report, code) = pod().report(&[]).await;
    assert_eq!((code, &report["errors"][0]["source"]), (64, &"CA_ROOT_CA".into()), "{report:#}");
    assert_eq!(pod().with("WORKLOAD_IDENTITY_SOCKET_FILE", "spire.sock").report(&[]).await.1, 1);
    // A server that comes to the usual socket by itself.
    let pod = pod();
    let socket = pod.folder.join("var/run/secrets/workload-spiffe-uds/socket");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // The client's preface and its SETTINGS; an empty SETTINGS frame.
            stream.read_exact(&mut [0; 24 + 9]).await.unwrap();
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
        }
    });
    let (report, code) = pod.report(&[]).await;
    assert_eq!(code, 1, "{report:#}");
}

#[tokio::test]
async fn the_way_goes_through_the_proxy_as_the_agent_does() {
    let istiod = Istiod::start().await;
    let name = format!("istiod.istio-system.svc:{}", istiod.address.port());
    let (proxy, asked) = proxy(istiod.address).await;
    let pod = Pod::new(&name).with("HTTPS_PROXY", &format!("http://user:word@{proxy}"));
    pod.folder.write("var/run/secrets/istio/root-cert.pem", istiod.ca.root_pem());
    let (report, code) = pod.report(&[]).await;
    assert_eq!(code, 0, "{:#} {}", report["steps"], report["errors"]);
    let names: Vec<String> =
        states(&report).into_iter().skip(1).map(|(name, _)| name.rsplit(": ").next().unwrap().to_owned()).collect();
    assert_eq!(names, ["proxy", "TLS", "HTTP/2", "token"]);
    assert_eq!(asked.await.unwrap(), format!("CONNECT {name} HTTP/1.1"));
    assert!(!report.to_string().contains("word"), "{report:#}");

    let (report, code) = pod.with("HTTPS_PROXY", "http://127.0.0.1:1").report(&[]).await;
    assert_eq!(code, 1, "{report:#}");
    let failed = report["steps"].as_array().unwrap().iter().find(|step| step["state"] == "failed").unwrap();
    assert!(failed["detail"].as_str().unwrap().starts_with("proxy 127.0.0.1:1: Connection refused"), "{failed:#}");
    assert!(failed["advice"].as_str().unwrap().contains("HTTPS_PROXY"), "{failed:#}");
}

/// An HTTP proxy that carries one connection to `target`, whatever it is asked for; where it listens, and what was asked.
async fn proxy(target: SocketAddr) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move {
        let mut client = listener.accept().await.unwrap().0;
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(client.read_u8().await.unwrap());
        }
        let mut server = TcpStream::connect(target).await.unwrap();
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        String::from_utf8(request).unwrap().lines().next().unwrap().to_owned()
    });
    (address, asked)
}

#[tokio::test]
async fn every_mistake_is_told_at_once() {
    let pod = Pod::new("istiod")
        .with("ISTIO_META_ENABLE_HBONE", "maybe")
        .with("ENVOY_STATUS_PORT", "99999")
        .with("ISTIO_DUAL_STACK", "perhaps")
        .with("FOOTMAN_TYPO", "1");
    let (report, code) = pod.report(&["sidecart", "--log_output_level=default:verbose"]).await;
    assert_eq!(code, 64, "{report:#}");
    let errors = report["errors"].to_string();
    for wanted in ["sidecart", "discoveryAddress", "PROXY_CONFIG:1", "ENABLE_HBONE", "ENVOY_STATUS_PORT", "verbose"] {
        assert!(errors.contains(wanted), "{wanted} in {errors}");
    }
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("ISTIO_DUAL_STACK") && warnings.contains("FOOTMAN_TYPO"), "{warnings}");
    assert_eq!(states(&report), []);
}

#[tokio::test]
async fn secrets_are_not_shown() {
    let token = "s3cret";
    let config = format!(
        "{{discoveryAddress: 'localhost:1', proxyMetadata: {{DB_PASSWORD: {token}}}, \
          tracing: {{lightstep: {{address: 'a:1', accessToken: {token}}}}}}}"
    );
    let pod = Pod::new("").with("PROXY_CONFIG", &config).with("XDS_HEADER_AUTH", token).with("XDS_ROOT_CA", "SYSTEM");
    let pod = pod.with("CA_ROOT_CA", "SYSTEM");
    for args in [&["--bootstrap"][..], &["--bootstrap", "-o", "json"]] {
        let output = pod.check(args).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("lightstep"), "{text}");
        assert!(text.contains("static_resources"), "{text}");
        assert!(!text.contains(token) && !text.contains("a-secret-token"), "{text}");
    }
}

#[tokio::test]
async fn envoy_says_what_it_thinks_of_the_bootstrap() {
    use std::os::unix::fs::PermissionsExt;
    let pod = Pod::new("localhost:1").with("XDS_ROOT_CA", "SYSTEM").with("CA_ROOT_CA", "SYSTEM");
    for (script, state) in [("exit 0", "ok"), ("echo unknown field >&2; exit 1", "wrong")] {
        let path = pod.folder.write("bin/envoy", format!("#!/bin/sh\necho \"$@\" > argv\n{script}\n"));
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        let (report, code) = pod.report(&[]).await;
        assert_eq!(report["steps"][0]["state"], state);
        assert_eq!(report["steps"][0]["detail"].as_str().unwrap().contains("unknown field"), state == "wrong");
        assert_eq!(code, if state == "wrong" { 64 } else { 1 });
        let argv = std::fs::read_to_string(pod.folder.join("argv")).unwrap();
        assert!(argv.contains("--mode validate") && argv.contains("-c "), "{argv}");
    }
}

#[tokio::test]
async fn forms_of_output() {
    let pod = Pod::new("localhost:1").with("XDS_ROOT_CA", "SYSTEM").with("CA_ROOT_CA", "SYSTEM");
    let output = pod.check(&["-o", "xml"]).await;
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8(pod.check(&["--outptu", "json", "--oldflag"]).await.stdout).unwrap();
    let warnings = "\n  --outptu: unknown, ignored; did you mean --output?\n  --oldflag: unknown, ignored\n";
    assert!(text.contains(warnings), "{text}");
    let text = String::from_utf8(pod.check(&[]).await.stdout).unwrap();
    assert!(text.contains("Settings\n") && text.contains("failed   istiod localhost:1: connection"), "{text}");
    assert!(!text.contains("static_resources"), "{text}");
}
