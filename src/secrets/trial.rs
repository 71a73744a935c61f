//! One certificate request outside of the agent's life: `footman check --request-certificate` asks whether istiod would sign. The
//! key is dropped with the answer; nothing is kept or served.

use std::time::{Duration, SystemTime};

use super::{Config, Order, answer, csr};
use crate::istiod::Istiod;

/// How long the CA may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Asks for a certificate as the agent would; what it says, or why there is none.
///
/// # Errors
/// What the CA said, or why its answer cannot be used.
pub async fn try_out(config: &Config) -> Result<String, String> {
    let Some(way) = &config.authority else {
        return Ok("not asked for: certificates come from files".to_owned());
    };
    let request = csr::request(&config.identity, config.key).map_err(|error| error.to_string())?;
    let authority = config.provider.authority(Istiod::new(way.clone()));
    let order = Order { csr: request.csr.clone(), validity: config.validity, deadline: DEADLINE };
    let answer = authority.sign(&order).await.map_err(|failure| failure.message)?;
    let issued = answer::check(request, &answer.chain, answer.roots, &config.identity, SystemTime::now());
    let issued = issued.map_err(|refusal| refusal.to_string())?;
    let leaf = &issued.workload.leaf;
    let mut said = format!("signed for {}, valid until {}", leaf.names.join(", "), answer::rfc3339(issued.expires));
    for warning in &issued.warnings {
        said.push_str("; ");
        said.push_str(warning);
    }
    Ok(said)
}
