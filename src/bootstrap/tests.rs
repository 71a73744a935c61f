//! Properties of the bootstrap as a whole; `tests/golden` holds what is in it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

fn document(vars: &Vars) -> Result<Json, Errors> {
    let bootstrap = Config::from_vars(vars)?.document(&Surroundings::default());
    // What Envoy reads is the text.
    Ok(serde_json::from_str(&bootstrap.to_string()).unwrap())
}

/// Text with everything that could break a template, a quoted string or a path.
fn any_text() -> impl Strategy<Value = String> {
    "[ -~äß☃\\\\\"'{}$`\n\t\r\u{0}\u{7f}\u{2028}]{0,24}"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_out_as_it_went_in(
        pod in any_text(),
        meta in any_text(),
        label in any_text(),
        annotation in any_text(),
        prefix in "[a-z\\\\\"'{}☃]{1,8}",
        tag in "[a-z\\\\\"'{}☃]{1,8}",
    ) {
        let vars = Vars::from_pairs([("POD_NAME", pod.as_str()), ("ISTIO_META_ANY", meta.as_str())]).with_pod(
            &[("any", &label)],
            &[
                ("any", &annotation),
                ("sidecar.istio.io/statsInclusionPrefixes", &prefix),
                ("sidecar.istio.io/extraStatTags", &tag),
            ],
        );
        let bootstrap = document(&vars).unwrap();
        let metadata = &bootstrap["node"]["metadata"];
        prop_assert_eq!(metadata["NAME"].as_str().unwrap_or_default(), pod);
        prop_assert_eq!(metadata["ANY"].as_str().unwrap_or_default(), meta);
        prop_assert_eq!(&metadata["LABELS"]["any"], &label);
        prop_assert_eq!(&metadata["ANNOTATIONS"]["any"], &annotation);
        let patterns = bootstrap["stats_config"]["stats_matcher"]["inclusion_list"]["patterns"].to_string();
        let wanted = json!({"prefix": prefix}).to_string();
        prop_assert!(patterns.contains(&wanted), "no {} in {}", wanted, patterns);
        let tags = bootstrap["stats_config"]["stats_tags"].as_array().unwrap();
        prop_assert!(tags.iter().any(|known| known["tag_name"] == tag.as_str()));
    }

    #[test]
    fn any_environment_gives_a_bootstrap_or_an_error_with_its_source(
        env in proptest::collection::btree_map(variable(), any_text(), 0..6),
    ) {
        let vars = Vars::from_pairs(env);
        if let Err(errors) = document(&vars) {
            prop_assert!(errors.0.iter().all(|error| !error.source.is_empty() && !error.message.is_empty()));
        }
    }
}

/// Names of variables that the bootstrap reads.
fn variable() -> impl Strategy<Value = String> {
    proptest::sample::select(vec![
        "ISTIO_META_ENABLE_HBONE",
        "ISTIO_META_POD_PORTS",
        "ISTIO_METAJSON_LABELS",
        "ISTIO_META_LABELS",
        "ISTIO_METAJSON_X",
        "ISTIO_META_LOAD_STATS_CONFIG_JSON",
        "ENVOY_STATUS_PORT",
        "WORKLOAD_IDENTITY_SOCKET_FILE",
        "DNS_PROXY_ADDR",
        "HOST_IP",
        "PEER_METADATA_DISCOVERY",
        "ISTIO_META_ENVOY_STATUS_PORT",
        "GRPC_XDS_BOOTSTRAP",
        "OUTPUT_CERTS",
    ])
    .prop_map(str::to_owned)
}

#[test]
fn only_the_metadata_that_wins_has_to_fit() {
    for (config, env, wanted) in [
        ("{ISTIO_META_ENABLE_HBONE: maybe}", ("ISTIO_META_ENABLE_HBONE", "true"), Ok(("ENABLE_HBONE", json!("true")))),
        ("{ISTIO_META_NETWORK: a}", ("ISTIO_METAJSON_X", "{\"NETWORK\": \"b\"}"), Ok(("NETWORK", json!("b")))),
        ("{}", ("ISTIO_METAJSON_X", "{\"LABELS\": {\"a\": null}}"), Ok(("LABELS", json!({"a": ""})))),
        ("{ISTIO_META_ENABLE_HBONE: 'true'}", ("ISTIO_META_ENABLE_HBONE", "maybe"), Err("ISTIO_META_ENABLE_HBONE")),
        ("{ISTIO_META_ENABLE_HBONE: maybe}", ("A", ""), Err("proxyMetadata.ISTIO_META_ENABLE_HBONE")),
        ("{}", ("ISTIO_METAJSON_X", "{\"LABELS\": {\"a\": 5}}"), Err("ISTIO_METAJSON_X")),
        ("{}", ("ISTIO_METAJSON_X", "{\"ANNOTATIONS\": {\"a\": []}}"), Err("ISTIO_METAJSON_X")),
    ] {
        let env = [("PROXY_CONFIG", format!("proxyMetadata: {config}").as_str()), env]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let (vars, errors) = Vars::load(crate::config::Sources { env: env.into(), ..Default::default() });
        assert!(errors.0.is_empty(), "{config}: {errors}");
        match (document(&vars), wanted) {
            (Ok(document), Ok((key, value))) => assert_eq!(document["node"]["metadata"][key], value, "{config}"),
            (Err(errors), Err(source)) => {
                assert_eq!(
                    errors.0.iter().map(|error| error.source.as_str()).collect::<Vec<_>>(),
                    [source],
                    "{config}"
                );
            }
            (found, wanted) => panic!("{config}: {found:?} instead of {wanted:?}"),
        }
    }
}

#[test]
fn metadata_brings_annotations_and_file_credentials() {
    let annotations =
        json!({"sidecar.istio.io/statsInclusionSuffixes": "x", "sidecar.istio.io/statsFlushInterval": "9s"});
    let metadata = json!({"ANNOTATIONS": annotations, "file-credential": "true"}).to_string();
    let bootstrap = document(&Vars::from_pairs([("ISTIO_METAJSON_X", metadata.as_str())])).unwrap();
    assert_eq!(bootstrap["stats_flush_interval"], "9s");
    assert!(bootstrap["stats_config"].to_string().contains("{\"suffix\":\"x\"}"));
    assert_eq!(bootstrap["static_resources"]["clusters"][3]["name"], "sds-files-grpc");
}

#[test]
fn an_empty_label_is_a_name_too() {
    for name in ["CANONICAL_NAME_ONLY", "CANONICAL_NAME_AND_NAMESPACE"] {
        let config = format!("tracingServiceName: {name}");
        let labels = "{\"service.istio.io/canonical-name\": \"\"}";
        let env = [
            ("PROXY_CONFIG", config.as_str()),
            ("POD_NAMESPACE", "ns"),
            ("ISTIO_META_WORKLOAD_NAME", "w"),
            ("ISTIO_METAJSON_X", &format!("{{\"LABELS\": {labels}}}")),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let (vars, _) = Vars::load(crate::config::Sources { env, ..Default::default() });
        assert_eq!(document(&vars).unwrap()["node"]["cluster"], ".ns", "{name}");
    }
}

#[test]
fn stackdriver_needs_a_project() {
    let env = [("PROXY_CONFIG".to_owned(), "tracing: {stackdriver: {}}".to_owned())];
    let (vars, _) = Vars::load(crate::config::Sources { env: env.into(), ..Default::default() });
    let config = Config::from_vars(&vars).unwrap();
    let mut around = Surroundings::default();
    assert!(config.fits(&around).unwrap_err().to_string().contains("gcp_project"));
    around.platform.metadata.insert("gcp_project".to_owned(), "p".to_owned());
    assert!(config.fits(&around).is_ok());
}

#[test]
fn ports_of_the_pod_as_istio_reads_them() {
    for (text, wanted) in [
        ("null", Ok(json!("null"))),
        ("[]", Ok(json!("[]"))),
        ("[{\"containerPort\":1,\"hostPort\":2}]", Ok(json!("[{\"containerPort\":1,\"protocol\":\"\"}]"))),
        (
            "[{\"name\":null,\"containerPort\":null,\"protocol\":null}]",
            Ok(json!("[{\"containerPort\":0,\"protocol\":\"\"}]")),
        ),
        ("[{\"name\":1}]", Err(())),
        ("", Err(())),
        ("{}", Err(())),
    ] {
        let found = document(&Vars::from_pairs([("ISTIO_META_POD_PORTS", text)])).map_err(|_| ());
        assert_eq!(found.map(|bootstrap| bootstrap["node"]["metadata"]["POD_PORTS"].clone()), wanted, "{text}");
    }
}

#[test]
fn metadata_discovery_without_delta_is_warned_of() {
    for (env, warned) in [
        (&[("ISTIO_META_ENABLE_HBONE", "true"), ("ISTIO_DELTA_XDS", "false")][..], true),
        (&[("PEER_METADATA_DISCOVERY", "true"), ("ISTIO_DELTA_XDS", "false")], true),
        (
            &[("PEER_METADATA_DISCOVERY", "false"), ("ISTIO_META_ENABLE_HBONE", "true"), ("ISTIO_DELTA_XDS", "false")],
            false,
        ),
        (&[("ISTIO_META_ENABLE_HBONE", "true")], false),
        (&[("ISTIO_DELTA_XDS", "false")], false),
    ] {
        let vars = Vars::from_pairs(env.iter().copied());
        let bootstrap = document(&vars).unwrap();
        assert_eq!(vars.warnings().iter().any(|line| line.starts_with("ISTIO_DELTA_XDS: ")), warned, "{env:?}");
        let discovers = bootstrap["bootstrap_extensions"].as_array().unwrap().len() == 2;
        assert_eq!(discovers, env == [("ISTIO_META_ENABLE_HBONE", "true")], "{env:?}");
    }
}

#[test]
fn the_address_family_follows_the_addresses() {
    let of = |addresses: &[&str], dual_stack| {
        let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        let family = Family::of(&addresses, dual_stack);
        (family.localhost, family.additional.map(|(localhost, _)| localhost), family.dns)
    };
    assert_eq!(of(&[], true), ("127.0.0.1", None, "V4_ONLY"));
    assert_eq!(of(&["10.0.0.1"], true), ("127.0.0.1", None, "V4_ONLY"));
    assert_eq!(of(&["fd00::1"], true), ("::1", None, "V6_ONLY"));
    assert_eq!(of(&["fd00::1", "10.0.0.1"], false), ("127.0.0.1", None, "V4_ONLY"));
    assert_eq!(of(&["fd00::1", "10.0.0.1"], true), ("::1", Some("127.0.0.1"), "ALL"));
    assert_eq!(of(&["10.0.0.1", "fd00::1"], true), ("127.0.0.1", Some("::1"), "ALL"));
    assert_eq!(of(&["fe80::1", "10.0.0.1"], true), ("127.0.0.1", Some("::1"), "ALL"));
}

#[test]
fn labels_of_a_virtual_machine() {
    let vars = Vars::from_pairs([("ISTIO_METAJSON_LABELS", "{\"a\": \"1\", \"n\": 5}")]);
    let platform = Platform {
        labels: BTreeMap::from([("a".to_owned(), "cloud".to_owned()), ("b".to_owned(), "2".to_owned())]),
        locality: ["r", "z", ""].map(str::to_owned),
        ..Platform::default()
    };
    let config = Config::from_vars(&vars).unwrap();
    let bootstrap = config.document(&Surroundings { platform, ..Surroundings::default() });
    let node = &bootstrap["node"];
    let labels = json!({"a": "cloud", "n": "", "b": "2"});
    assert_eq!(node["metadata"]["STATIC_LABELS"], labels);
    assert_eq!(node["metadata"]["LABELS"], labels);
    assert_eq!(node["metadata"]["n"], 5);
    assert_eq!(node["locality"], json!({"region": "r", "zone": "z"}));
    assert!(vars.warnings().iter().any(|warning| warning.contains("ISTIO_METAJSON_LABELS")));
}

#[test]
fn refused_settings_name_their_source() {
    for (name, value, named) in [
        ("ISTIO_META_ENABLE_HBONE", "maybe", "ENABLE_HBONE: \"maybe\" is not true or false"),
        ("ISTIO_METAJSON_H", "{\"ENABLE_HBONE\": true}", "ENABLE_HBONE: true is not true or false in quotes"),
        ("ISTIO_META_POD_PORTS", "8080", "POD_PORTS"),
        ("ISTIO_META_POD_PORTS", "[{\"containerPort\": \"http\"}]", "POD_PORTS"),
        ("ISTIO_META_POD_PORTS", "[7]", "POD_PORTS"),
        ("ISTIO_METAJSON_P", "{\"POD_PORTS\": []}", "POD_PORTS"),
        ("ISTIO_META_ENVOY_STATUS_PORT", "15021", "ENVOY_STATUS_PORT"),
        ("ISTIO_META_LABELS", "a", "LABELS"),
        ("ENVOY_STATUS_PORT", "70000", "ENVOY_STATUS_PORT"),
        ("ISTIO_META_LOAD_STATS_CONFIG_JSON", "{", "LOAD_STATS_CONFIG_JSON"),
    ] {
        let errors = document(&Vars::from_pairs([(name, value)])).unwrap_err().to_string();
        assert!(errors.contains(named), "{name}={value}: {errors}");
    }
}

/// Tags and the list that says which statistics are kept.
fn statistics(env: &[(&str, &str)], template: &str) -> (Vec<String>, bool) {
    let root = std::env::temp_dir().join(format!("footman-template-{}-{}", std::process::id(), template.len()));
    let folder = root.join("var/lib/istio/envoy");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("envoy_bootstrap_tmpl.json"), template).unwrap();
    let vars = Vars::from_pairs(env.iter().copied()).with_root(root.clone());
    let bootstrap = document(&vars).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    assert!(!vars.asked()["FOOTMAN_HIGRESS_BOOTSTRAP"].value.is_empty());
    let stats = &bootstrap["stats_config"];
    let tags = stats["stats_tags"].as_array().unwrap().iter();
    let tags = tags.map(|tag| tag["tag_name"].as_str().unwrap().to_owned()).collect();
    let excludes = stats["stats_matcher"]["exclusion_list"].is_object();
    assert!(excludes != stats["stats_matcher"]["inclusion_list"].is_object());
    (tags, excludes)
}

#[test]
fn the_variable_then_the_template_says_whose_bootstrap_it_is() {
    const NAME: &str = "FOOTMAN_HIGRESS_BOOTSTRAP";
    let higress = "wasm_runtime thread_name plugin_name phase ruleid ai_route ai_cluster ai_model ai_consumer \
                   http_conn_manager_prefix cluster_name";
    let v3 = "route api_name api_env api_version api_operation vhost vcluster response_code";
    let own = format!("{higress} response_code_class listener_address");
    let v3 =
        format!("{higress} {v3} response_code_class http_conn_manager_listener_prefix listener_address wasm_filter");
    let istio = statistics(&[], "").0.join(" ");
    assert_eq!(istio.split(' ').count(), 16);
    for (template, env, tags, excludes) in [
        ("{{ }}", &[("LITE_METRICS", "1")][..], &istio, false),
        ("{{ }} exclusion_list", &[], &istio, false),
        ("{{ }} wasmcustom", &[], &own, false),
        ("{{ }} wasmcustom exclusion_list", &[], &own, true),
        ("{{ }} wasmcustom", &[("LITE_METRICS", "1")], &String::new(), false),
        ("{{ }} \"stats_tags\": [],", &[], &String::new(), false),
        ("{{ }} wasmcustom upstream_bind_config exclusion_list", &[], &v3, true),
        ("{{ }} wasmcustom exclusion_list .", &[(NAME, "false")], &istio, false),
        ("{{ }} wasmcustom exclusion_list ..", &[(NAME, "true")], &own, false),
        ("{{ }} wasmcustom exclusion_list ...", &[(NAME, "foo")], &istio, false),
        ("{{ }} ...", &[(NAME, "exclusion")], &own, true),
        ("{{ }} ....", &[(NAME, "true"), ("LITE_METRICS", "1")], &String::new(), false),
        ("{{ }} .....", &[(NAME, "v3-gateway"), ("LITE_METRICS", "1")], &v3, true),
    ] {
        let (found, kept) = statistics(env, template);
        assert_eq!((&found.join(" "), kept), (tags, excludes), "{template} {env:?}");
    }
}

#[test]
fn a_bootstrap_that_nobody_has_is_warned_of() {
    let vars = Vars::from_pairs([("FOOTMAN_HIGRESS_BOOTSTRAP", "foo")]);
    document(&vars).unwrap();
    let warning =
        "FOOTMAN_HIGRESS_BOOTSTRAP: \"foo\" is not false, true, exclusion or v3-gateway; using false".to_owned();
    assert!(vars.warnings().contains(&warning), "{:?}", vars.warnings());
}

#[test]
fn only_higress_has_exclusions() {
    let config = ("PROXY_CONFIG", "proxyStatsMatcher: {exclusionRegexps: [a]}");
    for (flavor, shown) in [("false", json!({})), ("true", json!({"exclusionRegexps": ["a"]}))] {
        let env =
            [config, ("FOOTMAN_HIGRESS_BOOTSTRAP", flavor)].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let (vars, errors) = Vars::load(crate::config::Sources { env: env.into(), ..Default::default() });
        let bootstrap = document(&vars).unwrap();
        assert_eq!(bootstrap["node"]["metadata"]["PROXY_CONFIG"]["proxyStatsMatcher"], shown, "{flavor} {errors}");
        let warned = vars.warnings().iter().any(|line| line.contains("exclusionRegexps"));
        assert_eq!((warned, bootstrap["stats_config"]["stats_matcher"]["exclusion_list"].is_object()), {
            let is_istio = flavor == "false";
            (is_istio, !is_istio)
        });
    }
}

#[test]
fn labels_of_the_pod_add_to_those_that_metadata_fixes() {
    let env = [("ISTIO_METAJSON_X", "{\"STATIC_LABELS\": {\"a\": \"1\", \"b\": \"1\"}}")];
    let node = document(&Vars::from_pairs(env).with_pod(&[("b", "2")], &[])).unwrap();
    assert_eq!(node["node"]["metadata"]["LABELS"], json!({"a": "1", "b": "2"}));
}

#[test]
fn grpc_applications_see_an_sts_port_that_metadata_brings() {
    let config = Config::from_vars(&Vars::from_pairs([("ISTIO_META_STS_PORT", "5")])).unwrap();
    let text = grpc::document(&config, &Node::new(&config, &Surroundings::default())).compact();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\"STS_PORT\":\"5\""), "{text}");
}

#[test]
fn a_template_of_an_image_is_known_by_its_place() {
    let of = |path: &str| {
        let root = std::env::temp_dir().join(format!("footman-image-{}", std::process::id()));
        let folder = root.join(path);
        std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
        std::fs::write(&folder, "{{ .nodeID }}").unwrap();
        let vars = Vars::from_pairs([("ISTIO_BOOTSTRAP", path)]).with_root(root.clone());
        let found = document(&vars).map(|_| vars.warnings().join("\n"));
        std::fs::remove_dir_all(&root).unwrap();
        found
    };
    assert!(of("var/lib/istio/envoy/envoy_bootstrap_tmpl.json").unwrap().contains("takes the place of"));
    assert!(of("./var/lib/istio/envoy/envoy_bootstrap_lite_tmpl.json").is_ok());
    assert!(of("etc/envoy_bootstrap_tmpl.json").unwrap_err().to_string().contains("Go template"));
    let without_file = |path| document(&Vars::from_pairs([("ISTIO_BOOTSTRAP", path)]).with_root("/nowhere".into()));
    assert!(without_file("/var/lib/istio/envoy/envoy_bootstrap_tmpl.json").is_ok());
    assert!(without_file("etc/envoy_bootstrap_tmpl.json").is_err());
}
