//! Configuration from folders and environments that a test makes.

//! Whole configurations, from files and variables to what is in effect.

use super::*;
use crate::config::{AuthPolicy, ClusterName};

/// A folder for one test, with these files in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Folder {
        let root = std::env::temp_dir().join(format!("footman-vars-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Folder(root)
    }

    fn load(&self, env: &[(&str, &str)], flags: Flags) -> Result<Vars, Errors> {
        let (vars, errors) = Vars::load(Sources {
            flags,
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            interfaces: Vec::new(),
            root: self.0.clone(),
            processors: 4,
            ..Sources::default()
        });
        errors.into_result(vars)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn with_env(env: &[(&str, &str)]) -> Result<Vars, Errors> {
    Folder::new("env", &[]).load(env, Flags::default())
}

fn proxy_config(text: &str) -> Result<Vars, Errors> {
    with_env(&[("PROXY_CONFIG", text)])
}

fn flags(pairs: &[(&str, &str)]) -> Flags {
    let mut flags = Flags::default();
    pairs.iter().for_each(|(name, value)| flags.set(name, value).unwrap());
    flags
}

#[test]
fn defaults() {
    let vars = with_env(&[("POD_NAMESPACE", "ns"), ("POD_NAME", "p")]).unwrap();
    let proxy = vars.proxy();
    assert_eq!((proxy.proxy_admin_port, proxy.status_port, proxy.concurrency), (15000, 15020, None));
    assert_eq!(proxy.termination_drain_duration, Some(std::time::Duration::from_secs(5)));
    assert_eq!(proxy.discovery_address, "istiod.istio-system.svc:15012");
    assert_eq!(proxy.control_plane_auth_policy, AuthPolicy::MutualTls);
    assert_eq!(vars.node_id(), "sidecar~127.0.0.1~p.ns~ns.svc.cluster.local");
    assert_eq!(vars.proxy_document().len(), 10);
}

#[test]
fn later_sources_win_and_are_remembered() {
    let mesh =
        "defaultConfig:\n  discoveryAddress: file:1\n  binaryPath: /b\n  proxyMetadata: {SOME: setting, BOTH: file}\n";
    let annotations = "proxy.istio.io/config=\"discoveryAddress: annotation:3\\nproxyMetadata: {ANNOTATION: a}\"\n";
    let files = [("etc/istio/config/mesh", mesh), ("etc/istio/pod/annotations", annotations)];
    let folder = Folder::new("precedence", &files);
    let vars = folder
        .load(&[("PROXY_CONFIG", "meshId: m\ndiscoveryAddress: env:2\nproxyMetadata: {BOTH: env}")], Flags::default())
        .unwrap();
    assert_eq!(vars.proxy().discovery_address, "annotation:3");
    assert_eq!(vars.proxy_origin("discoveryAddress").to_string(), "annotation proxy.istio.io/config");
    assert_eq!(vars.proxy_origin("binaryPath").to_string(), "./etc/istio/config/mesh:3");
    assert_eq!(vars.proxy_origin("meshId").to_string(), "PROXY_CONFIG:1");
    assert_eq!(vars.proxy_origin("configPath"), Origin::Default);
    let settings = vars.proxy_settings();
    let of = |name: &str| settings.iter().find(|(n, _, _)| n == name).map(|(_, v, o)| format!("{v} {o}")).unwrap();
    assert_eq!(of("proxyMetadata.SOME"), "setting ./etc/istio/config/mesh:4");
    assert_eq!(of("proxyMetadata.BOTH"), "env PROXY_CONFIG:3");
    assert_eq!(of("proxyMetadata.ANNOTATION"), "a annotation proxy.istio.io/config");
}

#[test]
fn layers_replace_whole_fields() {
    let mesh = "defaultConfig:\n  extraStatTags: [a]\n  proxyStatsMatcher: {inclusionPrefixes: [a], inclusionSuffixes: [b]}\n  \
                proxyHeaders: {requestId: {disabled: true}, preserveHttp1HeaderCase: true}\n";
    let overlay = "extraStatTags: [b]\nproxyStatsMatcher: {inclusionSuffixes: [e]}\nproxyMetadata:\nOTHER: x\n\
                   proxyHeaders: {server: {value: x}}\ntracingServiceName: CANONICAL_NAME_ONLY\n";
    let folder = Folder::new("replace", &[("etc/istio/config/mesh", mesh)]);
    let vars = folder.load(&[("PROXY_CONFIG", overlay)], Flags::default()).unwrap();
    let proxy = vars.proxy();
    assert_eq!(proxy.extra_stat_tags, ["b"]);
    assert_eq!(
        (proxy.proxy_stats_matcher.prefixes.len(), &proxy.proxy_stats_matcher.suffixes[..]),
        (0, &["e".to_owned()][..])
    );
    assert_eq!(proxy.cluster_name, ClusterName::CanonicalName);
    let document = vars.proxy_document();
    assert_eq!(
        document["proxyHeaders"],
        serde_json::json!({"server": {"value": "x"}, "requestId": {"disabled": true}})
    );
    assert!(!document.contains_key("serviceCluster"));
    assert!(vars.warnings().iter().any(|warning| warning.contains("OTHER")));
}

#[test]
fn concurrency() {
    let of = |env: &[(&str, &str)], typed: &str| {
        let folder = Folder::new("concurrency", &[]);
        let vars = folder.load(env, flags(&[("concurrency", typed)])).unwrap();
        let warned = vars.warnings().iter().any(|warning| warning.contains("worker thread"));
        (vars.proxy().concurrency, warned)
    };
    assert_eq!(of(&[("ISTIO_CPU_LIMIT", "2")], "0"), (Some(2), false));
    assert_eq!(of(&[("ISTIO_CPU_LIMIT", "2"), ("PROXY_CONFIG", "concurrency: 0")], "0"), (Some(0), true));
    assert_eq!(of(&[("PROXY_CONFIG", "concurrency: 2")], "4"), (Some(4), false));
    assert_eq!(of(&[], "0"), (None, true));
}

#[test]
fn annotations_override_after_validation() {
    let of = |text: &str| Folder::new("overrides", &[("etc/istio/pod/annotations", text)]).load(&[], Flags::default());
    let vars =
        of("sidecar.istio.io/discoveryAddress=\"Odd_Host:99999\"\nstatus.sidecar.istio.io/port=\"abc\"").unwrap();
    assert_eq!((vars.proxy().discovery_address.as_str(), vars.proxy().status_port), ("Odd_Host:99999", 0));
    assert_eq!(of("status.sidecar.istio.io/port=\"0\"").unwrap().proxy().status_port, 0);
    let errors = of("sidecar.istio.io/discoveryAddress=\"x\"").unwrap_err();
    assert!(errors.to_string().contains("sidecar.istio.io/discoveryAddress"));
    assert!(of("broken=x\nstatus.sidecar.istio.io/port=\"1\"").unwrap().warnings()[0].contains("pod/annotations"));
}

#[test]
fn service_cluster_flag_fills_only_an_empty_overlay() {
    let foo = || flags(&[("serviceCluster", "foo")]);
    let name = |vars: Vars| vars.proxy().cluster_name.clone();
    let folder = Folder::new("cluster", &[]);
    assert_eq!(
        name(folder.load(&[("PROXY_CONFIG", "serviceCluster: ''")], foo()).unwrap()),
        ClusterName::Service("foo".into())
    );
    assert_eq!(name(folder.load(&[], foo()).unwrap()), ClusterName::default());
    let mesh = Folder::new("cluster-mesh", &[("etc/istio/config/mesh", "defaultConfig: {serviceCluster: ''}")]);
    assert!(mesh.load(&[], foo()).unwrap_err().to_string().contains("serviceCluster"));
}

#[test]
fn every_error_is_told_with_its_source() {
    let errors = proxy_config(
        "{\"discoveryAddress\": \"istiod\", \"proxyAdminPort\": 70000, \"statusPort\": -1, \"binaryPath\": \"\",\n\
         \"tracing\": {\"lightstep\": {\"address\": \"ls.example:443\"}, \"tlsSettings\": {\"mode\": \"MUTUAL\"}},\n\
         \"proxyMetadata\": {\"A\": 1}}",
    )
    .unwrap_err();
    let text = errors.to_string();
    for wanted in [
        "PROXY_CONFIG:1: discoveryAddress",
        "PROXY_CONFIG:1: proxyAdminPort",
        "PROXY_CONFIG:1: statusPort",
        "PROXY_CONFIG:1: binaryPath",
        "PROXY_CONFIG:2: tracing.lightstep.accessToken",
        "PROXY_CONFIG:2: tracing.tlsSettings.privateKey",
        "PROXY_CONFIG:3: proxyMetadata.A",
    ] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
    let mut role = Flags::default();
    role.positional("sidecart");
    let errors = Folder::new("role", &[]).load(&[("PROXY_CONFIG", "a: [")], role).unwrap_err();
    assert!(errors.to_string().contains("invalid proxy Type: sidecart") && errors.0.len() == 2, "{errors}");
}

#[test]
fn refused_values() {
    for (text, field) in [
        ("drainDuration: 1500ms", "drainDuration"),
        ("drainDuration: 0s", "drainDuration"),
        ("controlPlaneAuthPolicy: INHERIT", "controlPlaneAuthPolicy"),
        ("privateKeyProvider: {cryptomb: {}}", "privateKeyProvider.cryptomb.pollDelay"),
        ("privateKeyProvider: {}", "privateKeyProvider"),
        ("tracing: {zipkin: {address: z}}", "tracing.zipkin.address"),
        ("tracing: {zipkin: {}}", "tracing.zipkin.address"),
        ("tracing: {lightstep: {address: '$(HOST_IP):1', accessToken: x}}", "tracing.lightstep.address"),
        ("envoyMetricsService: {address: m}", "envoyMetricsService.address"),
        ("tracing: {tlsSettings: {mode: SIMPLE, credentialName: c, caCrl: k}}", "tracing.tlsSettings.caCrl"),
        ("tracing: {tlsSettings: {mode: MUTUAL, credentialName: c, privateKey: k}}", "tracing.tlsSettings.privateKey"),
        ("tracing: {tlsSettings: {mode: MUTUAL, clientCertificate: c}}", "tracing.tlsSettings.privateKey"),
        (
            "tracing: {tlsSettings: {mode: SIMPLE, insecureSkipVerify: true, caCertificates: /c}}",
            "tracing.tlsSettings.caCertificates",
        ),
        (
            "tracing: {tlsSettings: {mode: SIMPLE, insecureSkipVerify: true, credentialName: c}}",
            "tracing.tlsSettings.credentialName",
        ),
        ("connectionSettings: {http2InitialStreamWindowSize: 100}", "connectionSettings.http2InitialStreamWindowSize"),
        ("connectionSettings: {httpIdleTimeout: -1s}", "connectionSettings.httpIdleTimeout"),
        ("configPath: ''", "configPath"),
    ] {
        let errors = proxy_config(text).unwrap_err().to_string();
        assert!(errors.contains(field), "{text}: {errors}");
    }
    for text in [
        "tracing: {zipkin: {address: '$(HOST_IP):9411'}}",
        "drainDuration: 1m",
        "discovery_address: x:1",
        "# nothing",
        "tracing: {tlsSettings: {insecureSkipVerify: true, caCertificates: /c}}",
        "tracing: {tlsSettings: {mode: MUTUAL, insecureSkipVerify: true, credentialName: c}}",
        "tracing: {tlsSettings: {mode: ISTIO_MUTUAL, credentialName: c, privateKey: k}}",
        "envoyMetricsService: {address: 'a:1', tlsSettings: {mode: MUTUAL, caCertificates: /c}}",
    ] {
        assert!(proxy_config(text).is_ok(), "{text}");
    }
}

#[test]
fn the_mesh_file_may_be_missing_or_empty_but_not_a_folder() {
    let folder = Folder::new("mesh", &[("etc/istio/config/mesh/x", ""), ("empty", ""), ("list", "[1]")]);
    assert!(folder.load(&[], Flags::default()).unwrap_err().to_string().contains("etc/istio/config/mesh"));
    assert!(folder.load(&[], flags(&[("meshConfig", "empty")])).is_ok());
    assert!(folder.load(&[], flags(&[("meshConfig", "nosuch")])).is_ok());
    assert!(folder.load(&[], flags(&[("meshConfig", "list")])).unwrap_err().to_string().contains("list:1"));
}

#[test]
fn the_mesh_file_spells_default_config_one_way() {
    let of = |name: &str| {
        let text = format!("{name}: {{meshId: m}}");
        let folder = Folder::new(&format!("spelt-{name}"), &[("etc/istio/config/mesh", text.as_str())]);
        let vars = folder.load(&[], Flags::default()).unwrap();
        let warned = vars.warnings().iter().any(|line| line.contains("etc/istio/config/mesh:1: default_config"));
        (vars.proxy_document().contains_key("meshId"), warned)
    };
    assert_eq!((of("defaultConfig"), of("default_config")), ((true, false), (false, true)));
}

#[test]
fn instance_ip_forms() {
    let first = |ip: &str| with_env(&[("INSTANCE_IP", ip)]).unwrap().ip_addresses()[0].to_string();
    assert_eq!(first("FD00:0001:0:0::0007"), "fd00:1::7");
    assert_eq!(first("[fd00::1]"), "fd00::1");
    assert_eq!(first("::ffff:10.0.0.1"), "10.0.0.1");
    assert_eq!(first("10.244.1.300"), "127.0.0.1");
}

#[test]
fn statsd_addresses() {
    let of = |text: &str, found: Option<Result<Vec<IpAddr>, String>>| {
        let mut vars = proxy_config(&format!("statsdUdpAddress: '{text}'")).unwrap();
        assert_eq!(vars.statsd_host().is_some(), found.is_some(), "{text}");
        if let Some(found) = found {
            vars.set_statsd(&found);
        }
        (
            vars.proxy().statsd_udp_address.clone(),
            vars.warnings().iter().any(|warning| warning.contains("statsdUdpAddress")),
        )
    };
    let ips = |texts: &[&str]| Some(Ok(texts.iter().map(|ip| ip.parse().unwrap()).collect()));
    assert_eq!(of("[2001:DB8:0::40]:9125", None), ("[2001:db8::40]:9125".into(), false));
    assert_eq!(of("10.0.0.1:9125", None), ("10.0.0.1:9125".into(), false));
    assert_eq!(of("s:9125", ips(&["fd00::1", "10.0.0.1", "10.0.0.2"])), ("10.0.0.1:9125".into(), false));
    assert_eq!(of("s:9125", ips(&["fd00::1", "fd00::2"])), ("[fd00::2]:9125".into(), false));
    assert_eq!(of("s:9125", Some(Err("no such name".into()))), (String::new(), true));
    assert_eq!(of("s:x", ips(&["10.0.0.1"])), (String::new(), true));
    assert_eq!(of("noport", None), (String::new(), true));
}

#[test]
fn files_in_the_configuration_folder() {
    let of = |path: &str| {
        let proxy = ProxyConfig { config_path: path.to_owned(), ..ProxyConfig::default() };
        proxy.config_file("XDS").to_string_lossy().into_owned()
    };
    assert_eq!(of("./etc/istio/proxy"), "etc/istio/proxy/XDS");
    assert_eq!(of("/run//a/../b/"), "/run/b/XDS");
    assert_eq!(of("../x/.."), "../XDS");
    assert_eq!(of("/.."), "/XDS");
}

#[test]
fn compliance_policies() {
    let of = |policy: &str| with_env(&[("COMPLIANCE_POLICY", policy)]);
    assert!(of("pqc").unwrap_err().to_string().contains("X25519MLKEM768"));
    for (policy, told) in [("fips-140-3", "not certified"), ("fips", "ignored")] {
        assert!(of(policy).unwrap().warnings().iter().any(|warning| warning.contains(told)), "{policy}");
    }
    assert!(!of("").unwrap().warnings().iter().any(|warning| warning.contains("COMPLIANCE")));
}
