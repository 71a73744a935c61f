//! Tables for recognising and patching plugins.

use super::*;

/// A message made of length-delimited fields.
fn fields(list: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, value) in list {
        wire::put(&mut out, *number, value);
    }
    out
}

fn any(type_url: &str, value: &[u8]) -> Vec<u8> {
    fields(&[(1, type_url.as_bytes()), (2, value)])
}

fn extension(name: &str, typed: &[u8]) -> Bytes {
    any("type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", &fields(&[(1, name.as_bytes()), (2, typed)]))
        .into()
}

fn plugin(kind: &str, vm: &[(u32, &[u8])], extra: &[u8]) -> Bytes {
    let mut config = fields(&[(1, b"plugin"), (3, &fields(vm))]);
    config.extend_from_slice(extra);
    extension("ns.p", &any(kind, &fields(&[(1, &config)])))
}

fn remote_code(uri: &str, sha256: &str) -> Vec<u8> {
    fields(&[(2, &fields(&[(1, &fields(&[(1, uri.as_bytes()), (2, b"_")])), (2, sha256.as_bytes())]))])
}

fn remote(resource: &Bytes) -> Remote {
    match recognise(resource) {
        Ok(Resource::Remote(remote)) => *remote,
        other => panic!("{other:?}"),
    }
}

#[test]
fn remote_plugins_of_both_kinds() {
    for (url, kind) in [(HTTP_WASM, Kind::Http), (NETWORK_WASM, Kind::Network)] {
        let remote = remote(&plugin(url, &[(3, &remote_code("http://h/x", "nil"))], b""));
        assert_eq!((remote.name.as_str(), remote.plugin.as_str(), remote.kind), ("ns.p", "plugin", kind));
        let source = Source { uri: "http://h/x".to_owned(), sha256: String::new(), timeout: DEFAULT_TIMEOUT };
        assert_eq!(remote.source, Some(source));
        assert!(!remote.fail_open);
    }
}

#[test]
fn fail_strategy() {
    // 5: fail_open, 7: failure_policy.
    for (extra, open) in [
        (&b""[..], false),
        (b"\x28\x01", true),
        (b"\x38\x03", true),
        (b"\x28\x01\x38\x02", false),
        (b"\x28\x01\x38\x01", false),
        (b"\x28\x01\x38\x00", true),
    ] {
        assert_eq!(remote(&plugin(HTTP_WASM, &[(3, &remote_code("u", ""))], extra)).fail_open, open, "{extra:?}");
    }
}

#[test]
fn other_resources_pass() {
    let inline = fields(&[(1, &fields(&[(2, b"\0asm")]))]);
    let struct_of_other = fields(&[(1, b"type.googleapis.com/acme.Filter")]);
    for resource in [
        extension("x", &any("type.googleapis.com/acme.Filter", b"\xff\xff")),
        extension("x", &any(TYPED_STRUCTS[0], &struct_of_other)),
        plugin(HTTP_WASM, &[(3, &inline)], b""),
    ] {
        assert!(matches!(recognise(&resource), Ok(Resource::Other)), "{resource:?}");
    }
}

#[test]
fn nonsense_is_refused_by_name() {
    let unclear = |why: &str| format!("failed to unmarshal extension config resource: ns.p: {why}");
    let no_code = unclear("the Wasm plugin has neither remote nor local code");
    for (resource, error) in [
        (plugin(HTTP_WASM, &[], b""), no_code.clone()),
        (plugin(NETWORK_WASM, &[(3, b"")], b""), no_code.clone()),
        (extension("ns.p", &any(HTTP_WASM, b"")), no_code.clone()),
        (extension("ns.p", &any(TYPED_STRUCTS[1], &fields(&[(1, HTTP_WASM.as_bytes())]))), no_code),
        (
            any("type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", b"\x0a\x04ns.p").into(),
            unclear("typed_config is missing"),
        ),
    ] {
        assert_eq!(recognise(&resource).unwrap_err(), error);
    }
    for resource in [
        any("type.googleapis.com/envoy.config.cluster.v3.Cluster", b"").into(),
        any("x/envoy.config.core.v3.TypedExtensionConfig", b"\x0a\x7f").into(),
        extension("ns.p", &any(HTTP_WASM, b"\x0a\x7f")),
        extension("ns.p", &any(TYPED_STRUCTS[0], b"\x0a\x7f")),
        Bytes::from_static(b"\x12\x7f"),
    ] {
        assert!(recognise(&resource).unwrap_err().starts_with("failed to unmarshal extension config resource: "));
    }
}

#[test]
fn only_code_and_the_agents_variables_change() {
    let variable = |key: &[u8]| fields(&[(1, key), (2, b"v")]);
    let environment = fields(&[(1, b"HOST"), (2, &variable(b"ISTIO_META_X")), (2, &variable(b"FOO")), (77, b"new")]);
    let left = fields(&[(1, b"HOST"), (2, &variable(b"FOO")), (77, b"new")]);
    let before = plugin(
        HTTP_WASM,
        &[(1, b"id"), (3, &remote_code("u", "")), (7, &environment), (90, b"unknown")],
        &fields(&[(4, b"\x0a\x01t\x12\x03\xff\x00\x01"), (91, b"unknown")]),
    );
    let local = fields(&[(1, &fields(&[(1, b"/m.wasm")]))]);
    let after = plugin(
        HTTP_WASM,
        &[(1, b"id"), (3, &local), (7, &left), (90, b"unknown")],
        &fields(&[(4, b"\x0a\x01t\x12\x03\xff\x00\x01"), (91, b"unknown")]),
    );
    let path = Local { path: "/m.wasm".to_owned(), aot: false };
    assert_eq!(remote(&before).with_code(&path).unwrap(), after);
}

#[test]
fn empty_environment_is_dropped() {
    let variable = fields(&[(1, b"ISTIO_META_X"), (2, b"v")]);
    let before = plugin(HTTP_WASM, &[(3, &remote_code("u", "")), (7, &fields(&[(2, &variable)]))], b"");
    let local = fields(&[(1, &fields(&[(1, b"/m")]))]);
    let path = Local { path: "/m".to_owned(), aot: false };
    assert_eq!(remote(&before).with_code(&path).unwrap(), plugin(HTTP_WASM, &[(3, &local)], b""));
}

#[test]
fn modules_compiled_ahead_of_time_get_their_runtime() {
    let before = plugin(HTTP_WASM, &[(2, b"envoy.wasm.runtime.v8"), (3, &remote_code("u", ""))], b"");
    let path = Local { path: "/m".to_owned(), aot: true };
    let any = Any::decode(remote(&before).with_code(&path).unwrap()).unwrap();
    let typed = TypedExtensionConfig::decode(any.value).unwrap().typed_config.unwrap();
    let vm = Wasm::decode(typed.value).unwrap().config.unwrap().vm_config.unwrap();
    assert_eq!(vm.runtime, AOT_RUNTIME);
    assert!(vm.allow_precompiled);
}

#[test]
fn negative_and_missing_timeouts() {
    let with = |timeout: &[u8]| fields(&[(2, &fields(&[(1, &fields(&[(1, b"u"), (3, timeout)]))]))]);
    let minus = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    for (timeout, expected) in [(&b"\x08\x1e"[..], 30_000), (b"", 0), (minus, 0), (b"\x10\x80\xca\xb5\xee\x01", 500)] {
        let remote = remote(&plugin(HTTP_WASM, &[(3, &with(timeout))], b""));
        assert_eq!(remote.source.unwrap().timeout, Duration::from_millis(expected), "{timeout:?}");
    }
}

#[test]
fn without_uri_there_is_no_source() {
    let remote = remote(&plugin(HTTP_WASM, &[(3, &fields(&[(2, b"")]))], b""));
    assert_eq!(remote.source, None);
}
