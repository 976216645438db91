//! Certificates of OVN's databases: names of the objects by which controller and node agent exchange them, and when one is renewed.

use std::time::{Duration, SystemTime};

use x509_parser::pem::parse_x509_pem;

/// Signer of certificates by which ovn-controller shows its chassis name to the southbound database.
pub const SIGNER: &str = "slipstream.dev/ovn-controller";
/// ConfigMap with the certificates of the authorities that sign the databases' servers, under [`CA`].
pub const AUTHORITIES: &str = "slipstream-ovn-ca";
/// Name of the service account of node agents.
pub const AGENT: &str = "slipstream-node-agent";
/// Key and file name of the authorities' certificates.
pub const CA: &str = "ca.crt";
/// Key and file name of a certificate.
pub const CERTIFICATE: &str = "tls.crt";
/// Key and file name of a private key.
pub const KEY: &str = "tls.key";
/// User information by which the API server says to which node a token is bound.
pub const NODE_OF_TOKEN: &str = "authentication.kubernetes.io/node-name";

/// What a certificate says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Common name of the subject.
    pub name: String,
    /// From when on it is valid.
    pub begin: SystemTime,
    /// Until when it is valid.
    pub end: SystemTime,
}

/// A text that is no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a certificate in PEM: {0}")]
pub struct NoCertificate(String);

impl Facts {
    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    /// There is none.
    pub fn read(pem: &str) -> Result<Self, NoCertificate> {
        let (_rest, block) =
            parse_x509_pem(pem.as_bytes()).map_err(|error| NoCertificate(error.to_string()))?;
        let certificate = block.parse_x509().map_err(|error| NoCertificate(error.to_string()))?;
        let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let at = |seconds: i64| {
            SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
        };
        Ok(Self {
            name: name.unwrap_or_default().to_owned(),
            begin: at(certificate.validity().not_before.timestamp()),
            end: at(certificate.validity().not_after.timestamp()),
        })
    }

    /// Whether it is time for a new one: a third of its life is left, or less.
    #[must_use]
    pub fn is_due(&self, now: SystemTime) -> bool {
        let life = self.end.duration_since(self.begin).unwrap_or_default();
        self.end.duration_since(now).unwrap_or_default() <= life / 3
    }
}

/// The certificates of a PEM text, each with its own lines.
#[must_use]
pub fn split(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let blocks = pem.split_inclusive(END).filter(|block| block.ends_with(END));
    blocks.map(|block| format!("{}\n", block.trim_start())).collect()
}

/// The authorities to trust when `current` signs: it, and those that were trusted before and are still valid, so that what they have
/// signed is accepted until it is renewed.
#[must_use]
pub fn bundle(current: &str, before: &str, now: SystemTime) -> String {
    let current = split(current);
    let valid = |pem: &String| Facts::read(pem).is_ok_and(|facts| facts.end > now);
    let old = split(before).into_iter().filter(|pem| valid(pem) && !current.contains(pem));
    current.iter().cloned().chain(old).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn certificate(name: &str, begin: SystemTime, days: u32) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = begin.into();
        params.not_after = (begin + DAY * days).into();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn a_certificate_is_due_when_a_third_of_its_life_is_left() {
        let now = SystemTime::now();
        let facts = Facts::read(&certificate("n1", now, 90)).unwrap();
        assert_eq!(facts.name, "n1");
        assert!(!facts.is_due(now + DAY * 59));
        assert!(facts.is_due(now + DAY * 61) && facts.is_due(now + DAY * 91));
        assert!(Facts::read("-----BEGIN NOTHING-----").unwrap_err().to_string().contains("PEM"));
    }

    #[test]
    fn authorities_of_before_are_trusted_while_they_are_valid() {
        let now = SystemTime::now();
        let (old, new) = (certificate("old", now - DAY, 10), certificate("new", now, 10));
        let over = certificate("over", now - DAY * 9, 8);
        let all = bundle(&new, &format!("{old}{over}{new}"), now);
        let names: Vec<_> = split(&all).iter().map(|pem| Facts::read(pem).unwrap().name).collect();
        assert_eq!(names, ["new", "old"]);
        assert_eq!(bundle(&new, &all, now), all, "nothing more the next time");
    }
}
