//! Manifests and indexes (OCI image spec 1.1; Docker image manifest V2, schema 2): which blob holds the module.
//!
//! Pure. Istio takes the last layer of an image, or one of exactly two of an artifact; images as people publish them (Higress) have
//! more layers in other orders, so every layer that may hold the module counts here, the later one first.

use serde_json::Value;

pub(in crate::wasm) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// What is asked for (`Accept`).
pub(in crate::wasm) const ACCEPT: &str = "application/vnd.docker.distribution.manifest.v1+json,\
    application/vnd.docker.distribution.manifest.v1+prettyjws,application/vnd.docker.distribution.manifest.v2+json,\
    application/vnd.oci.image.manifest.v1+json,application/vnd.docker.distribution.manifest.list.v2+json,\
    application/vnd.oci.image.index.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const WASM_LAYER: &str = "application/vnd.module.wasm.content.layer.v1+wasm";
/// The layer type of the CNCF's Wasm OCI artifact.
const CNCF_WASM_LAYER: &str = "application/wasm";

/// So many types of layers are named where none can hold a module.
const MAX_TYPES: usize = 8;

/// A manifest or an index.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::wasm) enum Document {
    Image(Image),
    /// Images by platform.
    Index(Vec<Child>),
}

/// An image's layers, first to last.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::wasm) struct Image {
    /// Named as a Docker image.
    docker: bool,
    pub(in crate::wasm) layers: Vec<Descriptor>,
}

/// A blob or a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::wasm) struct Descriptor {
    pub(in crate::wasm) media_type: String,
    /// `sha256:…`.
    pub(in crate::wasm) digest: String,
    pub(in crate::wasm) size: u64,
    /// cosign's signature of the blob, when it has one.
    pub(in crate::wasm) signature: Option<String>,
}

/// An image in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::wasm) struct Child {
    pub(in crate::wasm) descriptor: Descriptor,
    os: String,
    architecture: String,
}

/// A layer that may hold the module.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::wasm) enum Layer<'a> {
    /// It is the module.
    Raw(&'a Descriptor),
    /// A tar.gz with `plugin.wasm` in it.
    Archive(&'a Descriptor),
}

/// Reads a manifest or an index; the error says what is wrong without quoting it.
pub(in crate::wasm) fn parse(body: &[u8], content_type: &str) -> Result<Document, String> {
    let document: Value = serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?;
    let named = text(&document, "mediaType");
    let media_type = if named.is_empty() { content_type.split(';').next().unwrap_or_default().trim() } else { named };
    let list = |name: &str| document.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match media_type {
        DOCKER_LIST | OCI_INDEX => Ok(Document::Index(list("manifests").iter().map(child).collect::<Result<_, _>>()?)),
        // A manifest without a type of its own is taken for what it looks like.
        DOCKER_MANIFEST | OCI_MANIFEST | "" | "application/json" | "application/octet-stream" | "text/plain" => {
            if named.is_empty() && document.get("manifests").is_some() {
                return Ok(Document::Index(list("manifests").iter().map(child).collect::<Result<_, _>>()?));
            }
            let layers = list("layers").iter().map(descriptor).collect::<Result<_, _>>()?;
            Ok(Document::Image(Image { docker: named == DOCKER_MANIFEST, layers }))
        }
        other => Err(format!("unsupported media type {other:?}")),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn descriptor(value: &Value) -> Result<Descriptor, String> {
    let digest = text(value, "digest");
    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
    if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("a descriptor has no sha256 digest".to_owned());
    }
    let annotations = value.get("annotations").unwrap_or(&Value::Null);
    let signature = text(annotations, "dev.cosignproject.cosign/signature");
    Ok(Descriptor {
        media_type: text(value, "mediaType").to_owned(),
        digest: digest.to_owned(),
        size: value.get("size").and_then(Value::as_u64).ok_or("a descriptor has no size")?,
        signature: Some(signature).filter(|text| !text.is_empty()).map(str::to_owned),
    })
}

fn child(value: &Value) -> Result<Child, String> {
    let platform = value.get("platform").unwrap_or(&Value::Null);
    let (os, architecture) = (text(platform, "os").to_owned(), text(platform, "architecture").to_owned());
    Ok(Child { descriptor: descriptor(value)?, os, architecture })
}

/// The image for this proxy: one made for Wasm, else Istio's choice `linux/amd64`, else this machine's, else the only one.
pub(in crate::wasm) fn choose(children: &[Child]) -> Option<&Descriptor> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let find = |wanted: &dyn Fn(&Child) -> bool| children.iter().find(|child| wanted(child));
    find(&|child| child.architecture == "wasm" || child.os.starts_with("wasi"))
        .or_else(|| find(&|child| child.os == "linux" && child.architecture == "amd64"))
        .or_else(|| find(&|child| child.os == "linux" && child.architecture == machine))
        .or_else(|| children.first().filter(|_| children.len() == 1))
        .map(|child| &child.descriptor)
}

impl Image {
    /// The layers that may hold the module, in the order in which they are tried; the error lists what was found instead.
    pub(in crate::wasm) fn candidates(&self) -> Result<Vec<Layer<'_>>, String> {
        let raw = self.layers.iter().rev().filter(|layer| [WASM_LAYER, CNCF_WASM_LAYER].contains(&&*layer.media_type));
        let archives = self.layers.iter().rev().filter(|layer| [DOCKER_LAYER, OCI_LAYER].contains(&&*layer.media_type));
        let found: Vec<Layer<'_>> = raw.map(Layer::Raw).chain(archives.map(Layer::Archive)).collect();
        if found.is_empty() { Err(self.no_module()) } else { Ok(found) }
    }

    /// Istio's text for an image without a module; `compat`: why the last layer, taken as a tar.gz, holds none.
    pub(in crate::wasm) fn invalid(&self, compat: &str) -> String {
        if self.docker {
            return format!("could not extract Wasm file from the image as Docker container {compat}");
        }
        let artifact = match self.layers.len() {
            2 => format!("could not find the layer of type {WASM_LAYER}"),
            count => format!("number of layers must be 2 but got {count}"),
        };
        format!(
            "the given image is in invalid format as an OCI image: 2 errors occurred:\n\t* could not parse as compat variant: \
             {compat}\n\t* could not parse as oci variant: {artifact}\n"
        )
    }

    fn no_module(&self) -> String {
        let want = if self.docker { DOCKER_LAYER } else { OCI_LAYER };
        let mut types: Vec<&str> = Vec::new();
        for layer in &self.layers {
            if types.len() < MAX_TYPES && !types.contains(&&*layer.media_type) {
                types.push(&layer.media_type);
            }
        }
        match types.is_empty() {
            true => self.invalid("number of layers must be greater than zero"),
            // Istio names the last one only.
            false => self.invalid(&format!("invalid media type {:.500} (expect {want})", types.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(letter: char) -> String {
        format!("sha256:{}", letter.to_string().repeat(64))
    }

    fn manifest(media_type: &str, layers: &[(&str, char)]) -> Vec<u8> {
        let layers: Vec<Value> = layers
            .iter()
            .map(|(kind, letter)| serde_json::json!({"mediaType": kind, "digest": digest(*letter), "size": 7}))
            .collect();
        serde_json::json!({"schemaVersion": 2, "mediaType": media_type, "layers": layers}).to_string().into_bytes()
    }

    fn image(body: &[u8]) -> Image {
        match parse(body, OCI_MANIFEST) {
            Ok(Document::Image(image)) => image,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn layers_by_shape() {
        for (layers, expected) in [
            (&[("application/vnd.module.wasm.config.v1+json", 'a'), (WASM_LAYER, 'b')][..], "Rb"),
            (&[(WASM_LAYER, 'b')], "Rb"),
            (&[(OCI_LAYER, 'a'), (OCI_LAYER, 'b')], "Ab Aa"),
            (&[("text/markdown", 'a'), (OCI_LAYER, 'b'), ("application/json", 'c')], "Ab"),
            (&[(DOCKER_LAYER, 'a')], "Aa"),
            (&[("text/markdown", 'a'), (WASM_LAYER, 'b'), (OCI_LAYER, 'c')], "Rb Ac"),
        ] {
            let image = image(&manifest(OCI_MANIFEST, layers));
            let shown: Vec<String> = image
                .candidates()
                .unwrap()
                .iter()
                .map(|layer| match layer {
                    Layer::Raw(blob) => format!("R{}", &blob.digest[7..8]),
                    Layer::Archive(blob) => format!("A{}", &blob.digest[7..8]),
                })
                .collect();
            assert_eq!(shown.join(" "), expected, "{layers:?}");
        }
    }

    #[test]
    fn images_without_a_module_say_what_they_hold() {
        let tar = "application/vnd.oci.image.layer.v1.tar";
        for (media_type, layers, error) in [
            (OCI_MANIFEST, &[][..], "number of layers must be greater than zero"),
            (OCI_MANIFEST, &[(tar, 'a')], "number of layers must be 2 but got 1"),
            (
                OCI_MANIFEST,
                &[(tar, 'a')],
                "invalid media type application/vnd.oci.image.layer.v1.tar (expect application/vnd.oci.image.layer.v1.tar+gzip)",
            ),
            (
                OCI_MANIFEST,
                &[(tar, 'a'), ("text/plain", 'b')],
                "could not find the layer of type application/vnd.module.wasm.content.layer.v1+wasm",
            ),
            (
                OCI_MANIFEST,
                &[("text/plain", 'a'), ("text/html", 'b'), ("text/plain", 'c')],
                "invalid media type text/plain, text/html (expect application/vnd.oci.image.layer.v1.tar+gzip)",
            ),
            (
                DOCKER_MANIFEST,
                &[(tar, 'a')],
                "could not extract Wasm file from the image as Docker container invalid media type",
            ),
        ] {
            let text = image(&manifest(media_type, layers)).candidates().unwrap_err();
            assert!(text.contains(error), "{text}");
        }
    }

    fn index(platforms: &[(&str, &str, char)]) -> Vec<Child> {
        let manifests: Vec<Value> = platforms
            .iter()
            .map(|(os, architecture, letter)| {
                serde_json::json!({"digest": digest(*letter), "size": 7, "platform": {"os": os, "architecture": architecture}})
            })
            .collect();
        let body = serde_json::json!({"manifests": manifests}).to_string();
        match parse(body.as_bytes(), "application/vnd.oci.image.index.v1+json; charset=utf-8") {
            Ok(Document::Index(children)) => children,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn chooses_a_platform() {
        for (platforms, expected) in [
            (&[("linux", "arm64", 'a'), ("windows", "amd64", 'b'), ("linux", "amd64", 'c')][..], Some('c')),
            (&[("linux", "amd64", 'a'), ("wasip1", "wasm", 'b')], Some('b')),
            (&[("plan9", "mips", 'a')], Some('a')),
            (&[("plan9", "mips", 'a'), ("plan9", "arm", 'b')], None),
            (&[], None),
        ] {
            let children = index(platforms);
            assert_eq!(choose(&children).map(|blob| blob.digest.clone()), expected.map(digest), "{platforms:?}");
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        for body in [
            "{",
            "7",
            r#"{"layers": [{}]}"#,
            r#"{"layers": [{"digest": "sha256:../../etc", "size": 1}]}"#,
            r#"{"layers": [{"digest": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}]}"#,
            r#"{"mediaType": "text/html"}"#,
        ] {
            let parsed = parse(body.as_bytes(), "");
            assert!(parsed.is_err() || body == "7", "{body}: {parsed:?}");
        }
    }
}
