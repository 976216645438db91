//! A certificate authority: signs what it is given. Who gets what is decided elsewhere.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

const DAY: Duration = Duration::from_secs(86_400);
/// How long an authority lasts: those who trust it must be told of another one.
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(3653);
/// How long what it signs lasts. It is renewed when a third is left.
const LIFE: Duration = DAY.saturating_mul(90);
/// Clocks of nodes may be behind.
const SKEW: Duration = Duration::from_secs(3600);

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// An authority with its key.
#[derive(Debug)]
pub(super) struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority.
    pub(super) fn generate(name: &str) -> Result<Pair> {
        let mut params = params(name, AUTHORITY_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// An authority that was made before.
    ///
    /// # Errors
    /// A part is no PEM of its kind.
    pub(super) fn load(pair: &Pair) -> Result<Self> {
        let key = KeyPair::from_pem(&pair.key).context("tls.key: not a private key in PEM")?;
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key)
            .context("tls.crt: not a certificate of an authority in PEM")?;
        Ok(Self { certificate: pair.certificate.clone(), issuer })
    }

    /// Certificate of the authority itself, as PEM.
    pub(super) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A new key, and a certificate for it.
    pub(super) fn issue(&self, name: &str, purposes: &[ExtendedKeyUsagePurpose]) -> Result<Pair> {
        let key = KeyPair::generate()?;
        let certificate = leaf(name, purposes).signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// A certificate for the key of a request. Nothing else of the request gets into it.
    ///
    /// # Errors
    /// The request cannot be read, or was not signed with its key.
    pub(super) fn sign(&self, request: &str, name: &str) -> Result<String> {
        let request = read(request)?;
        let params = leaf(name, &[ExtendedKeyUsagePurpose::ClientAuth]);
        Ok(params.signed_by(&request.public_key, &self.issuer)?.pem())
    }
}

/// The common name that a request in PEM asks for.
///
/// # Errors
/// It cannot be read, was not signed with its key, or names nobody.
pub(super) fn name_of(request: &str) -> Result<String> {
    let request = read(request)?;
    match request.params.distinguished_name.get(&DnType::CommonName) {
        Some(DnValue::Utf8String(name)) => Ok(name.clone()),
        Some(DnValue::PrintableString(name)) => Ok(name.as_str().to_owned()),
        _ => anyhow::bail!("the subject has no common name"),
    }
}

fn read(request: &str) -> Result<CertificateSigningRequestParams> {
    CertificateSigningRequestParams::from_pem(request).context("not a request for a certificate in PEM")
}

fn leaf(name: &str, purposes: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let mut params = params(name, LIFE);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = purposes.to_vec();
    params.use_authority_key_identifier_extension = true;
    params
}

fn params(name: &str, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - SKEW).into(), (now + life).into());
    params
}

#[cfg(test)]
pub(super) mod tests {
    use api::certificate::Facts;

    use super::*;

    /// A request as an agent makes it.
    pub(crate) fn request(name: &str) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    #[test]
    fn an_authority_signs_requests_for_the_name_that_it_is_told() {
        let authority = Authority::load(&Authority::generate("nodes").unwrap()).unwrap();
        let request = request("chassis-a");
        assert_eq!(name_of(&request).unwrap(), "chassis-a");
        let facts = Facts::read(&authority.sign(&request, "chassis-b").unwrap()).unwrap();
        assert_eq!(facts.name, "chassis-b");
        assert!(!facts.is_due(SystemTime::now()));
        assert!(name_of("nonsense").unwrap_err().to_string().contains("PEM"));
    }

    #[test]
    fn a_part_that_is_no_pem_is_named() {
        let pair = Authority::generate("x").unwrap();
        let wrong = Pair { key: pair.certificate.clone(), ..pair.clone() };
        assert!(format!("{:#}", Authority::load(&wrong).unwrap_err()).contains("tls.key"));
        let wrong = Pair { certificate: pair.key.clone(), ..pair };
        assert!(format!("{:#}", Authority::load(&wrong).unwrap_err()).contains("tls.crt"));
    }
}
