//! Every suite, group and certificate algorithm, and who can do it. A new algorithm is one row here plus
//! its implementation in the library's module.

use ciphertoll_wire::{Channel, Protocol, Security, TlsVersion};

use crate::Refusal;

/// A library that implements TLS or DTLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name is its own description")]
pub enum Library {
    Rustls,
    Wolfssl,
    Dimpl,
}

use Library::{Dimpl, Rustls, Wolfssl};

impl Library {
    /// All of them.
    pub const ALL: [Self; 3] = [Rustls, Wolfssl, Dimpl];

    /// The name in a job.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rustls => "rustls",
            Wolfssl => "wolfssl",
            Dimpl => "dimpl",
        }
    }

    /// Whether this build contains it.
    #[must_use]
    pub fn built_in(self) -> bool {
        self != Wolfssl || cfg!(feature = "wolfssl")
    }

    fn versions(self) -> &'static [TlsVersion] {
        match self {
            Rustls => &[TlsVersion::Tls13],
            Wolfssl | Dimpl => &[TlsVersion::Dtls13, TlsVersion::Dtls12],
        }
    }
}

/// A cipher suite.
#[derive(Debug, PartialEq, Eq)]
pub struct Suite {
    /// IANA name.
    pub name: &'static str,
    /// IANA number.
    pub code: u16,
    /// Whether it belongs to version 1.2 (else 1.3).
    pub legacy: bool,
    /// What wolfSSL calls it.
    pub wolfssl: &'static str,
}

const fn suite(name: &'static str, code: u16, legacy: bool, wolfssl: &'static str) -> Suite {
    Suite { name, code, legacy, wolfssl }
}

/// The suites.
pub const SUITES: [Suite; 6] = [
    suite("TLS_AES_128_GCM_SHA256", 0x1301, false, "TLS13-AES128-GCM-SHA256"),
    suite("TLS_AES_256_GCM_SHA384", 0x1302, false, "TLS13-AES256-GCM-SHA384"),
    suite("TLS_CHACHA20_POLY1305_SHA256", 0x1303, false, "TLS13-CHACHA20-POLY1305-SHA256"),
    suite("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", 0xC02B, true, "ECDHE-ECDSA-AES128-GCM-SHA256"),
    suite("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", 0xC02C, true, "ECDHE-ECDSA-AES256-GCM-SHA384"),
    suite("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", 0xCCA9, true, "ECDHE-ECDSA-CHACHA20-POLY1305"),
];

/// A key-exchange group.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// Name in a job.
    pub name: &'static str,
    /// IANA number.
    pub code: u16,
    /// Who can do it.
    pub libraries: &'static [Library],
    /// Whether version 1.2 can use it.
    pub legacy: bool,
}

const fn group(name: &'static str, code: u16, libraries: &'static [Library], legacy: bool) -> Group {
    Group { name, code, libraries, legacy }
}

/// The groups.
pub const GROUPS: [Group; 9] = [
    group("X25519", 0x001D, &[Rustls, Wolfssl, Dimpl], true),
    group("P-256", 0x0017, &[Rustls, Wolfssl, Dimpl], true),
    group("P-384", 0x0018, &[Rustls, Wolfssl, Dimpl], true),
    group("X25519MLKEM768", 0x11EC, &[Rustls, Wolfssl], false),
    group("SecP256r1MLKEM768", 0x11EB, &[Rustls, Wolfssl], false),
    group("SecP384r1MLKEM1024", 0x11ED, &[Wolfssl], false),
    group("MLKEM512", 0x0200, &[Wolfssl], false),
    group("MLKEM768", 0x0201, &[Rustls, Wolfssl], false),
    group("MLKEM1024", 0x0202, &[Rustls, Wolfssl], false),
];

/// A certificate algorithm.
#[derive(Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Name in a job.
    pub name: &'static str,
    /// Content of the `AlgorithmIdentifier` of its public key, DER.
    pub key_algorithm: &'static [u8],
    /// Who can do it.
    pub libraries: &'static [Library],
    /// Whether the ECDHE-ECDSA suites of version 1.2 can use it.
    pub legacy: bool,
}

// OIDs: RFC 5480 (EC), RFC 8410 (Ed25519), RFC 3279 (RSA), RFC 9881 (ML-DSA).
const EC_P256: &[u8] = &[0x06, 7, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 2, 1, 0x06, 8, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 3, 1, 7];
const EC_P384: &[u8] = &[0x06, 7, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 2, 1, 0x06, 5, 0x2B, 0x81, 4, 0, 34];
const ED25519: &[u8] = &[0x06, 3, 0x2B, 0x65, 0x70];
const RSA: &[u8] = &[0x06, 9, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1, 1, 0x05, 0];
const ML_DSA_44: &[u8] = &[0x06, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, 17];
const ML_DSA_65: &[u8] = &[0x06, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, 18];
const ML_DSA_87: &[u8] = &[0x06, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, 19];

const fn certificate(
    name: &'static str,
    key_algorithm: &'static [u8],
    libraries: &'static [Library],
    legacy: bool,
) -> Certificate {
    Certificate { name, key_algorithm, libraries, legacy }
}

/// The certificate algorithms.
pub const CERTIFICATES: [Certificate; 7] = [
    certificate("ECDSA-P256", EC_P256, &[Rustls, Wolfssl, Dimpl], true),
    certificate("ECDSA-P384", EC_P384, &[Rustls, Wolfssl, Dimpl], true),
    certificate("Ed25519", ED25519, &[Rustls, Wolfssl], false),
    certificate("RSA-2048", RSA, &[Rustls, Wolfssl], false),
    certificate("ML-DSA-44", ML_DSA_44, &[Rustls, Wolfssl], false),
    certificate("ML-DSA-65", ML_DSA_65, &[Rustls, Wolfssl], false),
    certificate("ML-DSA-87", ML_DSA_87, &[Rustls, Wolfssl], false),
];

/// A [`Security`] whose names have been looked up and fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in `Security`")]
pub struct Pinned {
    pub version: TlsVersion,
    pub suite: &'static Suite,
    pub group: &'static Group,
    pub certificate: &'static Certificate,
    pub library: Library,
}

/// The libraries that can protect `protocol`; none for the unprotected ones.
#[must_use]
pub fn libraries(protocol: Protocol) -> &'static [Library] {
    match protocol {
        Protocol::Http | Protocol::Mqtt | Protocol::Coap => &[],
        Protocol::Https | Protocol::H3 | Protocol::Mqtts => &[Rustls],
        Protocol::Coaps => &[Wolfssl, Dimpl],
    }
}

/// Looks up what protects `channel`; `None` if nothing does.
///
/// # Errors
/// A name is unknown, or the version, library or build does not have it.
pub fn pin(channel: &Channel) -> Result<Option<Pinned>, Refusal> {
    let Some(security) = channel.security() else { return Ok(None) };
    let library = pin_library(channel.protocol(), security)?;
    let legacy = security.version == TlsVersion::Dtls12;
    let suite = pick("suite", &security.suite, &SUITES, |s| s.name, |s| s.legacy == legacy)?;
    let offers = |libraries: &[Library], legacy_too: bool| libraries.contains(&library) && (!legacy || legacy_too);
    let group = pick("group", &security.group, &GROUPS, |g| g.name, |g| offers(g.libraries, g.legacy))?;
    let certificate =
        pick("certificate", &security.certificate, &CERTIFICATES, |c| c.name, |c| offers(c.libraries, c.legacy))?;
    Ok(Some(Pinned { version: security.version, suite, group, certificate, library }))
}

fn pin_library(protocol: Protocol, security: &Security) -> Result<Library, Refusal> {
    let fits = libraries(protocol);
    let library = *pick("library", &security.library, &Library::ALL, |l| l.name(), |l| fits.contains(l))?;
    if !library.built_in() {
        return Err(Refusal {
            what: format!("library `{}` is not part of this build", library.name()),
            at: "channel.security.library".into(),
            accepted: fits.iter().filter(|l| l.built_in()).map(|l| l.name().to_owned()).collect(),
            hint: Some("build the engine with `--features wolfssl`".into()),
            unsupported: true,
        });
    }
    if !library.versions().contains(&security.version) {
        return Err(Refusal {
            what: format!("library `{}` does not offer {}", library.name(), version_name(security.version)),
            at: "channel.security.version".into(),
            accepted: library.versions().iter().map(|v| version_name(*v).to_owned()).collect(),
            hint: None,
            unsupported: true,
        });
    }
    Ok(library)
}

fn pick<T>(
    noun: &str,
    wanted: &str,
    rows: &'static [T],
    name: impl Fn(&T) -> &'static str,
    fits: impl Fn(&T) -> bool,
) -> Result<&'static T, Refusal> {
    let found = rows.iter().find(|row| name(row) == wanted);
    if let Some(row) = found.filter(|row| fits(row)) {
        return Ok(row);
    }
    let what = if found.is_some() { "is not offered by this channel" } else { "is unknown" };
    Err(Refusal {
        what: format!("{noun} `{wanted}` {what}"),
        at: format!("channel.security.{noun}"),
        accepted: rows.iter().filter(|row| fits(row)).map(|row| name(row).to_owned()).collect(),
        hint: Some("`ciphertoll channels` lists what this build can do".into()),
        unsupported: found.is_some(),
    })
}

/// The name of a version as the standards print it.
#[must_use]
pub fn version_name(version: TlsVersion) -> &'static str {
    match version {
        TlsVersion::Tls13 => "TLS 1.3",
        TlsVersion::Dtls13 => "DTLS 1.3",
        TlsVersion::Dtls12 => "DTLS 1.2",
    }
}

/// Everything that this build can pin for `protocol` with `version`.
pub fn combinations(protocol: Protocol, version: TlsVersion) -> impl Iterator<Item = Pinned> {
    let legacy = version == TlsVersion::Dtls12;
    let libraries = libraries(protocol).iter().copied();
    libraries.filter(move |l| l.built_in() && l.versions().contains(&version)).flat_map(move |library| {
        let fits =
            move |libraries: &[Library], legacy_too: bool| libraries.contains(&library) && (!legacy || legacy_too);
        let suites = SUITES.iter().filter(move |s| s.legacy == legacy);
        suites.flat_map(move |suite| {
            GROUPS.iter().filter(move |g| fits(g.libraries, g.legacy)).flat_map(move |group| {
                let certificates = CERTIFICATES.iter().filter(move |c| fits(c.libraries, c.legacy));
                certificates.map(move |certificate| Pinned { version, suite, group, certificate, library })
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use ciphertoll_wire::HttpVersion;

    use super::*;

    fn https(suite: &str, library: &str) -> Channel {
        let security = Security {
            version: TlsVersion::Tls13,
            suite: suite.into(),
            group: "X25519".into(),
            certificate: "ECDSA-P256".into(),
            library: library.into(),
        };
        Channel::Https { http: HttpVersion::Http1, security }
    }

    #[test]
    fn an_unknown_suite_is_refused_with_what_would_be_accepted() {
        let refusal = pin(&https("TLS_AES_512", "rustls")).unwrap_err();
        assert_eq!(refusal.what, "suite `TLS_AES_512` is unknown");
        assert_eq!(refusal.accepted.len(), 3);
        assert!(!refusal.unsupported);
    }

    #[test]
    fn a_suite_of_another_version_is_unsupported_not_unknown() {
        let refusal = pin(&https("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "rustls")).unwrap_err();
        assert!(refusal.unsupported, "{refusal:?}");
    }

    #[test]
    fn a_dtls_library_is_not_offered_for_https() {
        let refusal = pin(&https("TLS_AES_128_GCM_SHA256", "dimpl")).unwrap_err();
        assert_eq!((refusal.accepted, refusal.unsupported), (vec!["rustls".to_owned()], true));
    }

    #[test]
    fn names_and_numbers_are_unique() {
        let mut codes: Vec<u16> = GROUPS.iter().map(|g| g.code).chain(SUITES.iter().map(|s| s.code)).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), GROUPS.len() + SUITES.len());
    }

    #[test]
    fn every_combination_pins() {
        for pinned in combinations(Protocol::Https, TlsVersion::Tls13) {
            let security = Security {
                version: pinned.version,
                suite: pinned.suite.name.into(),
                group: pinned.group.name.into(),
                certificate: pinned.certificate.name.into(),
                library: pinned.library.name().into(),
            };
            let channel = Channel::Https { http: HttpVersion::Http1, security };
            assert_eq!(pin(&channel).unwrap(), Some(pinned));
        }
    }
}
