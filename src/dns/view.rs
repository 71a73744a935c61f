//! Under which names this proxy knows a host of the table: its own namespace and cluster domain decide on the short forms. Pure.

use crate::wires::NameEntry;

/// Registry of the hosts that have short forms.
const KUBERNETES: &str = "Kubernetes";

/// Where this proxy stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    namespace: String,
    /// What follows the namespace in the proxy's DNS domain: `svc.cluster.local`.
    domain: String,
}

/// One of the names of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form(pub(super) u16);

impl Form {
    /// The host as it stands in the table.
    pub const FULL: Form = Form(0);
    /// `<short>.<namespace>.svc`
    const SERVICE: Form = Form(1);
    /// `<short>.<namespace>`
    const NAMESPACED: Form = Form(2);
    /// `<short>`
    const SHORT: Form = Form(3);
    /// The first of `alt_hosts`; the others follow.
    const ALTERNATIVE: Form = Form(4);

    /// Whether it stands on its own in DNS, not only by a search list.
    pub fn is_absolute(self) -> bool {
        self == Form::FULL || self.0 >= Form::ALTERNATIVE.0
    }
}

/// A name in pieces that follow each other, without a final dot; nothing is copied to look at it.
pub type Pieces<'a> = [&'a [u8]; 5];

impl View {
    /// The view of a proxy in `namespace` whose `--domain` is `proxy_domain`, normally `<namespace>.svc.cluster.local`.
    pub fn new(namespace: &str, proxy_domain: &str) -> View {
        let domain = match proxy_domain.split_once('.') {
            Some((first, rest)) if first == namespace => rest,
            None if proxy_domain == namespace => "",
            _ => proxy_domain,
        };
        View { namespace: namespace.to_owned(), domain: domain.trim_matches('.').to_owned() }
    }

    /// Calls `each` with every form of an entry; short ones only for Kubernetes services of this cluster's domain, the
    /// shortest only for those of this proxy's own namespace.
    pub fn forms(&self, entry: &NameEntry<'_>, mut each: impl FnMut(Form)) {
        each(Form::FULL);
        if entry.registry != KUBERNETES || !self.is_in_domain(entry.host) {
            return;
        }
        if !entry.shortname.is_empty() {
            if !entry.namespace.is_empty() {
                each(Form::SERVICE);
                each(Form::NAMESPACED);
            }
            if entry.namespace == self.namespace {
                each(Form::SHORT);
            }
        }
        for (index, _) in (Form::ALTERNATIVE.0..).zip(entry.alt_hosts()) {
            each(Form(index));
        }
    }

    /// The name of a form.
    pub fn pieces<'a>(&'a self, entry: &NameEntry<'a>, form: Form) -> Pieces<'a> {
        let (short, namespace) = (entry.shortname.as_bytes(), entry.namespace.as_bytes());
        let service = self.domain.split('.').next().unwrap_or_default().as_bytes();
        match form {
            Form::FULL => [undotted(entry.host.as_bytes()), b"", b"", b"", b""],
            Form::SERVICE => [short, b".", namespace, b".", service],
            Form::NAMESPACED => [short, b".", namespace, b"", b""],
            Form::SHORT => [short, b"", b"", b"", b""],
            Form(index) => {
                let alternative = entry.alt_hosts().nth(usize::from(index - Form::ALTERNATIVE.0));
                [undotted(alternative.unwrap_or_default().as_bytes()), b"", b"", b"", b""]
            }
        }
    }

    /// Whether the entry comes from Kubernetes, whose names win over others.
    pub fn is_kubernetes(entry: &NameEntry<'_>) -> bool {
        entry.registry == KUBERNETES
    }

    fn is_in_domain(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let Some(rest) = host.strip_suffix(&*self.domain) else { return false };
        !self.domain.is_empty() && (rest.is_empty() || rest.ends_with('.'))
    }
}

/// The name without its final dot.
pub(super) fn undotted(name: &[u8]) -> &[u8] {
    name.strip_suffix(b".").unwrap_or(name)
}
