//! The private authority and the certificate of a run, made when the server starts and never written.

use ciphertoll_wire::Outcome;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    RsaKeySize, SignatureAlgorithm,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::{Error, names::Certificate};

/// A server's certificate, its key, and the authority that signed it.
pub struct Identity {
    /// The leaf; the authority is not sent.
    pub leaf: CertificateDer<'static>,
    /// PKCS#8.
    pub key: PrivateKeyDer<'static>,
    /// PEM of the authority.
    pub ca_pem: String,
}

impl Identity {
    /// Makes an authority and a leaf for `names`, both of `algorithm`.
    ///
    /// # Errors
    /// A name is not a valid DNS name or address.
    pub fn new(algorithm: &Certificate, names: &[String]) -> Result<Self, Error> {
        make(algorithm, names).map_err(|e| Error::failed(Outcome::Machine, format!("cannot make a certificate: {e}")))
    }

    /// A copy for another listener.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self { leaf: self.leaf.clone(), key: self.key.clone_key(), ca_pem: self.ca_pem.clone() }
    }
}

fn make(algorithm: &Certificate, names: &[String]) -> Result<Identity, rcgen::Error> {
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name.push(DnType::CommonName, "ciphertoll run authority");
    let ca_key = key_pair(algorithm)?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let mut leaf = CertificateParams::new(names.to_vec())?;
    leaf.distinguished_name.push(DnType::CommonName, "ciphertoll run server");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let leaf_key = key_pair(algorithm)?;
    let leaf = leaf.signed_by(&leaf_key, &issuer)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    Ok(Identity { leaf: leaf.der().clone(), key, ca_pem })
}

fn key_pair(algorithm: &Certificate) -> Result<KeyPair, rcgen::Error> {
    let scheme: &SignatureAlgorithm = match algorithm.name {
        "ECDSA-P256" => &rcgen::PKCS_ECDSA_P256_SHA256,
        "ECDSA-P384" => &rcgen::PKCS_ECDSA_P384_SHA384,
        "Ed25519" => &rcgen::PKCS_ED25519,
        "RSA-2048" => return KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
        "ML-DSA-44" => &rcgen::PKCS_ML_DSA_44,
        "ML-DSA-65" => &rcgen::PKCS_ML_DSA_65,
        "ML-DSA-87" => &rcgen::PKCS_ML_DSA_87,
        _ => return Err(rcgen::Error::KeyGenerationUnavailable),
    };
    KeyPair::generate_for(scheme)
}
