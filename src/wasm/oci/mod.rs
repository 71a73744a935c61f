//! OCI registries (distribution spec 1.1) and Docker's: from `oci://registry/repository:tag` to the module's bytes.
//!
//! Two steps, since the first often suffices: [`resolve`] reads the manifest, whose digest is the module's checksum; [`Found::pull`]
//! downloads and unpacks the layer.

mod challenge;
mod cosign;
mod credentials;
mod manifest;
mod reference;
mod registry;

pub(super) use cosign::PublicKey;
pub(super) use credentials::{Credentials, Keychain};
pub(super) use reference::Reference;

use std::path::Path;

use tokio::time::Instant;

use manifest::{Image, Layer};
use registry::Session;

use super::{
    archive,
    error::{Error, Stage},
    fetch::Client,
    spool::Spooled,
};

const NO_IMAGE: &str = "could not fetch Wasm OCI image: could not fetch manifest";

/// An image that the registry has.
pub(super) struct Found<'a> {
    session: Session<'a>,
    reference: &'a Reference,
    image: Image,
    /// The digest of the image's manifest, hexadecimal.
    pub(super) digest: String,
    /// The digest of the index that led to it.
    pub(super) index: Option<String>,
}

pub(super) fn fuzz_manifest(data: &[u8]) {
    match manifest::parse(data, "") {
        Ok(manifest::Document::Image(image)) => drop(image.candidates()),
        Ok(manifest::Document::Index(children)) => {
            manifest::choose(&children);
        }
        Err(_) => {}
    }
}

pub(super) fn fuzz_challenge(data: &[u8]) {
    for challenge in challenge::challenges(data.split(|byte| *byte == b'\n')) {
        if let challenge::Challenge::Bearer { realm, .. } = challenge {
            drop(challenge::check_realm(&realm, false));
        }
    }
}

/// Asks the registry which image the reference means.
pub(super) async fn resolve<'a>(
    client: &'a Client,
    reference: &'a Reference,
    credentials: &'a Credentials,
    deadline: Instant,
) -> Result<Found<'a>, Error> {
    let failed = |failure: registry::Failure| failure.into_error(Stage::Manifest, NO_IMAGE);
    let unreadable = |why: String| {
        let text = format!("could not fetch Wasm OCI image: could not fetch image: {reference}: {why}");
        Error::Fetch { stage: Stage::Manifest, text, retryable: false, after: None }
    };
    let mut session = Session::open(client, reference, credentials, deadline).await.map_err(failed)?;
    let document = session.manifest(reference.version()).await.map_err(failed)?;
    let parsed = manifest::parse(&document.body, &document.content_type).map_err(unreadable)?;
    let children = match parsed {
        manifest::Document::Image(image) => {
            return Ok(Found { session, reference, image, digest: document.digest, index: None });
        }
        manifest::Document::Index(children) => children,
    };
    let child = manifest::choose(&children)
        .ok_or_else(|| unreadable("no child with platform linux/amd64 in index".to_owned()))?;
    let image = session.manifest(&child.digest).await.map_err(failed)?;
    match manifest::parse(&image.body, &image.content_type).map_err(unreadable)? {
        manifest::Document::Image(parsed) => {
            Ok(Found { session, reference, image: parsed, digest: image.digest, index: Some(document.digest) })
        }
        manifest::Document::Index(_) => Err(unreadable("an index in an index".to_owned())),
    }
}

impl Found<'_> {
    /// Whether `expected`, a checksum or pinned digest, means this image: by its manifest, or by the index that led to it.
    pub(super) fn is(&self, expected: &str) -> bool {
        self.digest == expected || self.index.as_deref() == Some(expected)
    }

    /// Refuses an image without a valid signature of `key`.
    pub(super) async fn verify(&mut self, key: &PublicKey) -> Result<(), Error> {
        let digests: Vec<&str> = self.index.iter().chain([&self.digest]).map(String::as_str).collect();
        cosign::verify(&mut self.session, &digests, key).await.map_err(|failure| {
            failure.into_error(Stage::Manifest, &format!("Wasm OCI image {} is not signed", self.reference))
        })
    }

    /// Downloads the module into a file in `folder`: the first of the image's layers that holds one.
    pub(super) async fn pull(&mut self, folder: &Path, limit: u64) -> Result<Spooled, Error> {
        let fetched = |text: String| Error::Fetch {
            stage: Stage::Download,
            text: format!("could not fetch Wasm binary: {text}"),
            retryable: false,
            after: None,
        };
        let url = self.reference.to_string();
        let mut failures = Vec::new();
        for layer in self.image.candidates().map_err(fetched)? {
            match layer {
                Layer::Raw(blob) => {
                    let mut module = self.session.blob(blob, folder, limit).await?;
                    if archive::is_module(&mut module.file).map_err(|error| Error::storage("module", &error))? {
                        return Ok(module);
                    }
                    failures.push(Error::Invalid { url: url.clone(), why: None });
                }
                Layer::Archive(blob) => {
                    let packed = self.session.blob(blob, folder, limit).await?;
                    match archive::plugin(packed, folder, limit).await {
                        Ok(module) => return Ok(module),
                        Err(archive::Error::Spool(error)) => return Err(Error::from_spool(&url, error)),
                        Err(error) => failures.push(fetched(self.image.invalid(&error.to_string()))),
                    }
                }
            }
        }
        failures.into_iter().next().map_or_else(|| Err(fetched("no layer".to_owned())), Err)
    }
}
