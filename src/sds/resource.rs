//! Secrets as Envoy reads them: `envoy.extensions.transport_sockets.tls.v3.Secret` in a `google.protobuf.Any`. Pure.
//!
//! A secret is encoded once for all streams; its bytes are wiped when the last stream has sent them.

use std::{path::Path, sync::Arc, time::SystemTime};

use bytes::Bytes;
use prost::Message;
use zeroize::Zeroizing;

use crate::{
    config::PrivateKeyProvider,
    proto::{
        envoy::{
            config::core::v3::{DataSource, data_source::Specifier},
            extensions::transport_sockets::tls::v3::{
                self as tls, CertificateValidationContext, PrivateKeyMethodConfig, Secret, TlsCertificate, secret::Type,
            },
        },
        google::protobuf::{Any, Duration},
    },
    wires::{TrustBundle, Workload},
};

/// The type of every resource here.
pub(super) const TYPE_URL: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

/// One encoded secret.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    /// The encoded `Any`.
    pub any: Bytes,
    /// `<time>/<number>`, as Istio writes versions; never twice the same.
    pub version: Arc<str>,
    /// Grows with every encoding.
    pub number: u64,
}

/// A certificate. With a `provider` the key goes into its settings and nowhere else.
pub(super) fn certificate(name: &str, workload: &Workload, provider: Option<&PrivateKeyProvider>) -> Bytes {
    let key = inline(workload.key.bytes());
    let (private_key, private_key_provider) = match provider {
        None => (Some(key), None),
        Some(provider) => (None, Some(key_provider(key, provider))),
    };
    let certificate = TlsCertificate {
        certificate_chain: Some(inline(workload.chain.clone())),
        private_key,
        private_key_provider,
        ..TlsCertificate::default()
    };
    encode(name, Type::TlsCertificate(certificate))
}

/// Trust roots, with the revocation list that Envoy reads itself.
pub(super) fn roots(name: &str, bundle: &TrustBundle, crl: Option<&Path>) -> Bytes {
    let context = CertificateValidationContext {
        trusted_ca: Some(inline(bundle.pem.clone())),
        crl: crl.map(|path| DataSource {
            specifier: Some(Specifier::Filename(path.display().to_string())),
            watched_directory: None,
        }),
        ..CertificateValidationContext::default()
    };
    encode(name, Type::ValidationContext(context))
}

fn key_provider(key: DataSource, provider: &PrivateKeyProvider) -> tls::PrivateKeyProvider {
    let message = match provider.provider {
        "qat" => "qat.v3alpha.Qat",
        _ => "cryptomb.v3alpha.CryptoMb",
    };
    let delay = provider.poll_delay;
    let settings = PrivateKeyMethodConfig {
        private_key: Some(key),
        poll_delay: Some(Duration {
            seconds: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(delay.subsec_nanos()).unwrap_or_default(),
        }),
    };
    let any = Any {
        type_url: format!("type.googleapis.com/envoy.extensions.private_key_providers.{message}PrivateKeyMethodConfig"),
        value: wiped(&settings),
    };
    tls::PrivateKeyProvider {
        provider_name: provider.provider.to_owned(),
        config_type: Some(tls::private_key_provider::ConfigType::TypedConfig(any)),
        fallback: provider.fallback,
    }
}

fn inline(bytes: Bytes) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(bytes)), watched_directory: None }
}

fn encode(name: &str, kind: Type) -> Bytes {
    let secret = Secret { name: name.to_owned(), r#type: Some(kind) };
    wiped(&Any { type_url: TYPE_URL.to_owned(), value: wiped(&secret) })
}

/// The message in bytes that are wiped when the last handle to them is gone.
fn wiped(message: &impl Message) -> Bytes {
    Bytes::from_owner(Zeroizing::new(message.encode_to_vec()))
}

/// The version of the `number`th encoding.
pub(super) fn version(number: u64, now: SystemTime) -> Arc<str> {
    format!("{}/{number}", crate::secrets::rfc3339(now)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::testing::{Authority, snapshot};

    fn decoded(any: &Bytes) -> Secret {
        let any = Any::decode(&any[..]).unwrap();
        assert_eq!(any.type_url, TYPE_URL);
        Secret::decode(&any.value[..]).unwrap()
    }

    #[test]
    fn hardware_gets_the_key_inside_its_settings_and_nowhere_else() {
        let workload = snapshot(&Authority::new("a"), std::time::Duration::from_secs(60)).workload.unwrap();
        for (provider, fallback, message) in [("cryptomb", true, "CryptoMb"), ("qat", false, "Qat")] {
            let poll_delay = std::time::Duration::from_millis(1500);
            let settings = PrivateKeyProvider { provider, poll_delay, fallback };
            let secret = decoded(&certificate("default", &workload, Some(&settings)));
            let Some(Type::TlsCertificate(certificate)) = secret.r#type else { panic!("no certificate") };
            assert!(certificate.private_key.is_none());
            let shown = certificate.private_key_provider.unwrap();
            assert_eq!((&*shown.provider_name, shown.fallback), (provider, fallback));
            let Some(tls::private_key_provider::ConfigType::TypedConfig(any)) = shown.config_type else {
                panic!("no settings")
            };
            assert!(any.type_url.ends_with(&format!(".v3alpha.{message}PrivateKeyMethodConfig")), "{}", any.type_url);
            let method = PrivateKeyMethodConfig::decode(&any.value[..]).unwrap();
            assert_eq!(method.poll_delay.map(|delay| (delay.seconds, delay.nanos)), Some((1, 500_000_000)));
            let key = Specifier::InlineBytes(workload.key.bytes());
            assert_eq!(method.private_key.unwrap().specifier, Some(key));
        }
    }
}
