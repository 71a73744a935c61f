//! Every setting in effect: the proxy configuration's fields, the variables that the rooms asked for, the flags.

use super::report::Setting;
use crate::{
    cli::redact,
    config::{GLOBAL_FLAGS, PROXY_FLAGS, Vars},
};

/// All of them; `vars` after every room has read from it.
pub(super) fn all(vars: &Vars) -> Vec<Setting> {
    let mut settings = vec![
        Setting { name: "role".to_owned(), value: vars.role().to_string(), origin: role_origin(vars) },
        Setting {
            name: "addresses".to_owned(),
            value: vars.ip_addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            origin: "INSTANCE_IP, interfaces".to_owned(),
        },
    ];
    settings.extend(vars.proxy_settings().into_iter().map(|(name, value, origin)| Setting {
        value: redact::setting(&name, &value),
        name,
        origin: origin.to_string(),
    }));
    settings.extend(vars.asked().into_iter().map(|(name, setting)| Setting {
        value: redact::variable(&name, &setting.value),
        name,
        origin: setting.origin.to_string(),
    }));
    let flags = vars.flags();
    settings.extend(PROXY_FLAGS.iter().chain(GLOBAL_FLAGS).map(|flag| Setting {
        name: format!("--{}", flag.name),
        value: flags.all(flag.name).join(","),
        origin: flags.origin(flag.name).to_string(),
    }));
    settings
}

fn role_origin(vars: &Vars) -> String {
    if vars.flags().role_text().is_some() { "argument" } else { "default" }.to_owned()
}
