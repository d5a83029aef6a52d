//! wolfSSL, by its C interface, with I/O callbacks over memory.
#![allow(unsafe_code, reason = "wolfSSL is a C library; every block says why it is sound")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_long, c_ushort, c_void},
    net::IpAddr,
    ptr::NonNull,
    rc::Rc,
    sync::Once,
    time::Duration,
};

use ciphertoll_wire::{Negotiated, Outcome, TlsVersion};
use rustls::pki_types::ServerName;
use wolfssl_sys as c;

use super::{Association, LONGEST_PLAINTEXT_BYTES, Outgoing, State};
use crate::{
    Error,
    identity::Identity,
    names::{GROUPS, Pinned, SUITES},
    tls,
};

const SUCCESS: c_int = 1;
const WANT_READ: c_int = 2;
const WANT_WRITE: c_int = 3;
const ZERO_RETURN: c_int = 6;
/// The largest datagram that wolfSSL may be told of: a record and its header.
const LARGEST_DATAGRAM_BYTES: usize = LONGEST_PLAINTEXT_BYTES;

/// What all associations of one side share: suite, certificate, authority.
pub struct Context {
    raw: NonNull<c::WOLFSSL_CTX>,
    pinned: Pinned,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `raw` came from wolfSSL_CTX_new and is freed once; wolfSSL counts the associations that use it.
        unsafe { c::wolfSSL_CTX_free(self.raw.as_ptr()) };
    }
}

impl Context {
    /// A context for servers.
    pub fn server(pinned: &Pinned, identity: &Identity, datagram_bytes: usize) -> Result<Self, Error> {
        let context = Self::new(pinned, false, datagram_bytes)?;
        let key = version_1(identity.key.secret_der());
        let has_tickets = pinned.version == TlsVersion::Dtls13;
        // SAFETY: the context is valid; wolfSSL copies the buffers, whose lengths are given.
        let results = unsafe {
            [
                c::wolfSSL_CTX_use_certificate_buffer(
                    context.raw.as_ptr(),
                    identity.leaf.as_ptr(),
                    length(&identity.leaf),
                    c::WOLFSSL_FILETYPE_ASN1.cast_signed(),
                ),
                c::wolfSSL_CTX_use_PrivateKey_buffer(
                    context.raw.as_ptr(),
                    key.as_ptr(),
                    length(&key),
                    c::WOLFSSL_FILETYPE_ASN1.cast_signed(),
                ),
                // Says 0 where it is done, unlike the others, and refuses a context of 1.2.
                if has_tickets { 1 - c::wolfSSL_CTX_no_ticket_TLSv13(context.raw.as_ptr()) } else { SUCCESS },
            ]
        };
        for result in results {
            demand(result, "the certificate or its key")?;
        }
        Ok(context)
    }

    fn client(pinned: &Pinned, ca_pem: &str, datagram_bytes: usize) -> Result<Self, Error> {
        let context = Self::new(pinned, true, datagram_bytes)?;
        // SAFETY: the context is valid; wolfSSL copies the buffer, whose length is given.
        let loaded = unsafe {
            c::wolfSSL_CTX_set_verify(context.raw.as_ptr(), c::WOLFSSL_VERIFY_PEER.cast_signed(), Some(note));
            c::wolfSSL_CTX_load_verify_buffer(
                context.raw.as_ptr(),
                ca_pem.as_ptr(),
                length(ca_pem.as_bytes()),
                c::WOLFSSL_FILETYPE_PEM.cast_signed(),
            )
        };
        if loaded != SUCCESS {
            return Err(Error::failed(Outcome::Untrusted, format!("the authority's certificate: {}", words(loaded))));
        }
        Ok(context)
    }

    fn new(pinned: &Pinned, client: bool, datagram_bytes: usize) -> Result<Self, Error> {
        static INIT: Once = Once::new();
        // SAFETY: called once, before anything else of the library.
        INIT.call_once(|| {
            unsafe { c::wolfSSL_Init() };
        });
        // SAFETY: the methods are allocated by wolfSSL and taken over by wolfSSL_CTX_new.
        let raw = unsafe {
            c::wolfSSL_CTX_new(match (pinned.version, client) {
                (TlsVersion::Dtls12, true) => c::wolfDTLSv1_2_client_method(),
                (TlsVersion::Dtls12, false) => c::wolfDTLSv1_2_server_method(),
                (_, true) => c::wolfDTLSv1_3_client_method(),
                (_, false) => c::wolfDTLSv1_3_server_method(),
            })
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::failed(Outcome::Machine, "wolfSSL is out of memory"))?;
        let context = Self { raw, pinned: *pinned };
        let suite = c_string(pinned.suite.wolfssl)?;
        let mtu = c_ushort::try_from(datagram_bytes.min(LARGEST_DATAGRAM_BYTES)).unwrap_or(c_ushort::MAX);
        // SAFETY: the context is valid, the string ends with 0, and the callbacks have wolfSSL's signatures.
        unsafe {
            demand(c::wolfSSL_CTX_set_cipher_list(raw.as_ptr(), suite.as_ptr()), pinned.suite.name)?;
            demand(c::wolfSSL_CTX_dtls_set_mtu(raw.as_ptr(), mtu), "the datagram size")?;
            c::wolfSSL_CTX_SetIORecv(raw.as_ptr(), Some(give));
            c::wolfSSL_CTX_SetIOSend(raw.as_ptr(), Some(take));
        }
        Ok(context)
    }
}

/// A PKCS#8 key as version 1: AWS-LC writes Ed25519 keys as version 2 (RFC 5958), which wolfSSL refuses.
fn version_1(pkcs8: &[u8]) -> Vec<u8> {
    // SEQUENCE, INTEGER 1, SEQUENCE { OID 1.3.101.112 }, OCTET STRING { OCTET STRING of 32 bytes }.
    const ED25519_SEED_AT: usize = 16;
    let ed25519_v2 = pkcs8.len() > 48 && pkcs8[2..5] == [2, 1, 1] && pkcs8[5..12] == [0x30, 5, 6, 3, 0x2B, 0x65, 0x70];
    if !ed25519_v2 {
        return pkcs8.to_vec();
    }
    let mut key = vec![0x30, 0x2E, 2, 1, 0, 0x30, 5, 6, 3, 0x2B, 0x65, 0x70, 4, 0x22, 4, 0x20];
    key.extend_from_slice(&pkcs8[ED25519_SEED_AT..ED25519_SEED_AT + 32]);
    key
}

/// What the callbacks see: the datagram that came in, and those that go out.
#[derive(Default)]
struct Memory {
    incoming: Vec<u8>,
    outgoing: Outgoing,
    leaf: Option<Vec<u8>>,
}

/// wolfSSL has verified the peer's certificate, or refused it; its word stands. `config.site` has it call for good
/// ones too.
unsafe extern "C" fn note(verified: c_int, store: *mut c::WOLFSSL_X509_STORE_CTX) -> c_int {
    // SAFETY: wolfSSL gives a valid store; its user context is the Memory of this association, which nothing else
    // touches during a call into wolfSSL; `certs` holds `totalCerts` certificates, the leaf first.
    unsafe {
        let store = &*store;
        let memory = store.userCtx.cast::<Memory>();
        if !memory.is_null() && !store.certs.is_null() && store.totalCerts > 0 {
            let leaf = &*store.certs;
            (*memory).leaf = Some(std::slice::from_raw_parts(leaf.buffer, leaf.length as usize).to_vec());
        }
    }
    verified
}

/// wolfSSL wants a datagram.
unsafe extern "C" fn give(_: *mut c::WOLFSSL, to: *mut c_char, size: c_int, memory: *mut c_void) -> c_int {
    // SAFETY: `memory` is the Memory of this association, which nothing else touches during a call into wolfSSL.
    let memory = unsafe { &mut *memory.cast::<Memory>() };
    let room = usize::try_from(size).unwrap_or(0);
    if memory.incoming.is_empty() {
        return c::IOerrors_WOLFSSL_CBIO_ERR_WANT_READ;
    }
    // A datagram that is too long is cut, as recv(2) does; it then fails its authentication.
    let length = memory.incoming.len().min(room);
    // SAFETY: wolfSSL gives `size` bytes of room at `to`.
    unsafe { std::ptr::copy_nonoverlapping(memory.incoming.as_ptr(), to.cast(), length) };
    memory.incoming.clear();
    c_int::try_from(length).unwrap_or(0)
}

/// wolfSSL has a datagram.
unsafe extern "C" fn take(_: *mut c::WOLFSSL, from: *mut c_char, size: c_int, memory: *mut c_void) -> c_int {
    // SAFETY: as in `give`; wolfSSL gives `size` bytes at `from`.
    let (memory, datagram) = unsafe {
        let length = usize::try_from(size).unwrap_or(0);
        (&mut *memory.cast::<Memory>(), std::slice::from_raw_parts(from.cast::<u8>(), length))
    };
    memory.outgoing.push(datagram);
    size
}

/// One association.
pub struct Wolf {
    raw: NonNull<c::WOLFSSL>,
    // From a Box, and freed by `drop`. It is a raw pointer, because wolfSSL keeps a copy that its callbacks use.
    memory: NonNull<Memory>,
    plaintext: Vec<u8>,
    client: bool,
    /// What the certificate must be for, if that is an address; `None` once it was found to be.
    address: Option<ServerName<'static>>,
    negotiated: Option<Negotiated>,
    context: Rc<Context>,
}

impl Drop for Wolf {
    fn drop(&mut self) {
        // SAFETY: `raw` came from wolfSSL_new and is freed once, before the memory that its callbacks use, which came
        // from a Box and is freed once.
        unsafe {
            c::wolfSSL_free(self.raw.as_ptr());
            drop(Box::from_raw(self.memory.as_ptr()));
        }
    }
}

impl Wolf {
    /// The client's side.
    pub fn client(pinned: &Pinned, ca_pem: &str, name: &str, datagram_bytes: usize) -> Result<Self, Error> {
        let mut wolf = Self::new(Rc::new(Context::client(pinned, ca_pem, datagram_bytes)?), true)?;
        wolf.expect_name(name)?;
        if pinned.version == TlsVersion::Dtls13 {
            // SAFETY: the association is valid.
            demand(unsafe { c::wolfSSL_UseKeyShare(wolf.raw.as_ptr(), pinned.group.code) }, pinned.group.name)?;
        }
        Ok(wolf)
    }

    /// The server's side.
    pub fn accept(context: &Rc<Context>) -> Result<Self, Error> {
        Self::new(context.clone(), false)
    }

    fn new(context: Rc<Context>, client: bool) -> Result<Self, Error> {
        // SAFETY: the context is valid and lives as long as the association, which holds it.
        let raw = NonNull::new(unsafe { c::wolfSSL_new(context.raw.as_ptr()) })
            .ok_or_else(|| Error::failed(Outcome::Machine, "wolfSSL cannot make an association"))?;
        let memory = NonNull::from(Box::leak(Box::<Memory>::default()));
        let address: *mut c_void = memory.as_ptr().cast();
        let mut group = [c_int::from(context.pinned.group.code)];
        // SAFETY: the association is valid, `address` stays valid as long as it, and wolfSSL copies the groups.
        let set = unsafe {
            c::wolfSSL_SetIOReadCtx(raw.as_ptr(), address);
            c::wolfSSL_SetIOWriteCtx(raw.as_ptr(), address);
            c::wolfSSL_SetCertCbCtx(raw.as_ptr(), address);
            c::wolfSSL_dtls_set_using_nonblock(raw.as_ptr(), 1);
            c::wolfSSL_set_groups(raw.as_ptr(), group.as_mut_ptr(), 1)
        };
        let plaintext = vec![0; LONGEST_PLAINTEXT_BYTES];
        let group = context.pinned.group.name;
        let wolf = Self { raw, memory, plaintext, client, address: None, negotiated: None, context };
        if set == SUCCESS {
            return Ok(wolf);
        }
        Err(Error::failed(
            Outcome::Unsupported,
            format!("this build of wolfSSL does not have `{group}`; build with CONFIG_SITE=config.site"),
        ))
    }

    /// Not to be held during a call into wolfSSL, whose callbacks use it too.
    fn memory(&mut self) -> &mut Memory {
        // SAFETY: it is valid until `drop`; the callbacks, which alone use it besides, run within calls that take
        // `self`.
        unsafe { self.memory.as_mut() }
    }

    fn expect_name(&mut self, name: &str) -> Result<(), Error> {
        if name.parse::<IpAddr>().is_ok() {
            // wolfSSL does not read addresses from certificates as it is built here; webpki does, in `handshake`.
            self.address = Some(tls::server_name(name)?);
            return Ok(());
        }
        let text = c_string(name)?;
        let length = c_ushort::try_from(name.len()).unwrap_or(c_ushort::MAX);
        // SAFETY: the association is valid, wolfSSL copies the string, which ends with 0.
        let result = unsafe {
            c::wolfSSL_UseSNI(self.raw.as_ptr(), 0, text.as_ptr().cast(), length);
            c::wolfSSL_check_domain_name(self.raw.as_ptr(), text.as_ptr())
        };
        demand(result, "the name of the peer")
    }

    fn handshake(&mut self) -> Result<(), Error> {
        // SAFETY: the association is valid.
        let result = unsafe {
            if self.client { c::wolfSSL_connect(self.raw.as_ptr()) } else { c::wolfSSL_accept(self.raw.as_ptr()) }
        };
        if result == SUCCESS {
            let negotiated = self.read_back()?;
            tls::prove_equal(&self.context.pinned, &negotiated)?;
            if let (Some(address), Some(leaf)) = (self.address.take(), &self.memory().leaf) {
                tls::verify_name(leaf, &address)?;
            }
            self.negotiated = Some(negotiated);
            return Ok(());
        }
        match self.error(result) {
            WANT_READ | WANT_WRITE => Ok(()),
            ZERO_RETURN => Err(Error::failed(Outcome::Mismatch, "the peer ended the DTLS handshake")),
            code => Err(Error::failed(outcome_of(code), format!("DTLS handshake failed: {}", words(code)))),
        }
    }

    fn error(&self, result: c_int) -> c_int {
        // SAFETY: the association is valid.
        unsafe { c::wolfSSL_get_error(self.raw.as_ptr(), result) }
    }

    fn read_back(&mut self) -> Result<Negotiated, Error> {
        let raw = self.raw.as_ptr();
        // SAFETY: the association is valid; the strings belong to wolfSSL and end with 0.
        let (suite, version, curve, resumed) = unsafe {
            (
                c::wolfSSL_get_current_cipher_suite(raw),
                text(c::wolfSSL_get_version(raw)),
                text(c::wolfSSL_get_curve_name(raw)),
                c::wolfSSL_session_reused(raw) != 0,
            )
        };
        let version = if version == "DTLSv1.2" { TlsVersion::Dtls12 } else { TlsVersion::Dtls13 };
        let suite = u16::try_from(suite).ok();
        if self.client {
            let Some(leaf) = self.memory().leaf.as_deref() else {
                return Err(Error::failed(
                    Outcome::Unsupported,
                    "this build of wolfSSL does not show good certificates; build with CONFIG_SITE=config.site",
                ));
            };
            return tls::negotiated(version, suite, group_code(&curve), Some(leaf), resumed);
        }
        let pinned = &self.context.pinned;
        // A server sees no certificate and, as wolfSSL tells it, no group: the client proves both.
        let suite = SUITES.iter().find(|s| Some(s.code) == suite).map_or("", |s| s.name).into();
        let (group, certificate) = (pinned.group.name.into(), pinned.certificate.name.into());
        Ok(Negotiated { version, suite, group, certificate, resumed })
    }

    fn read(&mut self, deliver: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        loop {
            let room = c_int::try_from(self.plaintext.len()).unwrap_or(c_int::MAX);
            // SAFETY: the association is valid and the buffer has `room` bytes.
            let length = unsafe { c::wolfSSL_read(self.raw.as_ptr(), self.plaintext.as_mut_ptr().cast(), room) };
            if length <= 0 {
                return match self.error(length) {
                    WANT_READ | WANT_WRITE => Ok(()),
                    ZERO_RETURN => Err(Error::failed(Outcome::Vanished, "the peer closed the DTLS association")),
                    code => Err(Error::failed(Outcome::Vanished, format!("DTLS: {}", words(code)))),
                };
            }
            deliver(&self.plaintext[..usize::try_from(length).unwrap_or(0)]);
        }
    }
}

impl Association for Wolf {
    fn start(&mut self) -> Result<(), Error> {
        if self.client { self.handshake() } else { Ok(()) }
    }

    fn receive(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let memory = self.memory();
        memory.incoming.clear();
        memory.incoming.extend_from_slice(datagram);
        if self.negotiated.is_none() {
            self.handshake()?;
        }
        if self.negotiated.is_some() { self.read(deliver) } else { Ok(()) }
    }

    fn send(&mut self, plaintext: &[u8]) -> Result<(), Error> {
        let length = c_int::try_from(plaintext.len()).unwrap_or(c_int::MAX);
        // SAFETY: the association is valid and the buffer has `length` bytes.
        let sent = unsafe { c::wolfSSL_write(self.raw.as_ptr(), plaintext.as_ptr().cast(), length) };
        if sent == length {
            return Ok(());
        }
        Err(Error::failed(Outcome::Vanished, format!("DTLS cannot send: {}", words(self.error(sent)))))
    }

    fn transmit(&mut self, emit: &mut dyn FnMut(&[u8])) {
        self.memory().outgoing.drain(emit);
    }

    fn timeout(&self) -> Option<Duration> {
        if self.negotiated.is_some() {
            return None;
        }
        // SAFETY: the association is valid.
        let (seconds, quick) = unsafe {
            let raw = self.raw.as_ptr();
            (c::wolfSSL_dtls_get_current_timeout(raw), c::wolfSSL_dtls13_use_quick_timeout(raw) != 0)
        };
        let patience = Duration::from_secs(u64::try_from(seconds.max(1)).unwrap_or(1));
        // What came out of order is acknowledged sooner than a flight is repeated; the quarter is wolfSSL's own advice.
        Some(if quick { patience / 4 } else { patience })
    }

    fn on_timeout(&mut self) -> Result<(), Error> {
        // SAFETY: the association is valid.
        match unsafe { c::wolfSSL_dtls_got_timeout(self.raw.as_ptr()) } {
            0 | SUCCESS => Ok(()),
            result => match self.error(result) {
                WANT_READ | WANT_WRITE => Ok(()),
                code => Err(Error::failed(Outcome::TimedOut, format!("DTLS: {}", words(code)))),
            },
        }
    }

    fn state(&self) -> State {
        self.negotiated.as_ref().map_or(State::Handshaking, |n| State::Established(Some(n.clone())))
    }

    fn close(&mut self) {
        // SAFETY: the association is valid.
        unsafe { c::wolfSSL_shutdown(self.raw.as_ptr()) };
    }
}

fn group_code(curve: &str) -> Option<u16> {
    let name = match curve {
        "SECP256R1" => "P-256",
        "SECP384R1" => "P-384",
        "ML_KEM_512" => "MLKEM512",
        "ML_KEM_768" => "MLKEM768",
        "ML_KEM_1024" => "MLKEM1024",
        same => same,
    };
    GROUPS.iter().find(|g| g.name == name).map(|g| g.code)
}

fn outcome_of(code: c_int) -> Outcome {
    match code {
        c::wolfCrypt_ErrorCodes_ASN_PARSE_E
        | c::wolfCrypt_ErrorCodes_ASN_UNKNOWN_OID_E
        | c::wolfCrypt_ErrorCodes_ASN_BEFORE_DATE_E
        | c::wolfCrypt_ErrorCodes_ASN_AFTER_DATE_E
        | c::wolfCrypt_ErrorCodes_ASN_SIG_OID_E
        | c::wolfCrypt_ErrorCodes_ASN_SIG_CONFIRM_E
        | c::wolfCrypt_ErrorCodes_ASN_SIG_HASH_E
        | c::wolfCrypt_ErrorCodes_ASN_SIG_KEY_E
        | c::wolfCrypt_ErrorCodes_ASN_CRIT_EXT_E
        | c::wolfCrypt_ErrorCodes_ASN_NO_SIGNER_E
        | c::wolfCrypt_ErrorCodes_ASN_PATHLEN_INV_E
        | c::wolfCrypt_ErrorCodes_ASN_SELF_SIGNED_E
        | c::wolfSSL_ErrorCodes_DOMAIN_NAME_MISMATCH
        | c::wolfSSL_ErrorCodes_IPADDR_MISMATCH
        | c::wolfSSL_ErrorCodes_VERIFY_CERT_ERROR
        | c::wolfSSL_ErrorCodes_VERIFY_SIGN_ERROR
        | c::wolfSSL_ErrorCodes_NO_PEER_CERT
        | c::wolfSSL_ErrorCodes_NOT_CA_ERROR
        | c::wolfSSL_ErrorCodes_KEYUSE_SIGNATURE_E
        | c::wolfSSL_ErrorCodes_EXTKEYUSE_AUTH_E => Outcome::Untrusted,
        // A fatal alert of the peer.
        c::wolfSSL_ErrorCodes_FATAL_ERROR
        | c::wolfSSL_ErrorCodes_VERSION_ERROR
        | c::wolfSSL_ErrorCodes_UNSUPPORTED_PROTO_VERSION
        | c::wolfSSL_ErrorCodes_UNSUPPORTED_SUITE
        | c::wolfSSL_ErrorCodes_MATCH_SUITE_ERROR
        | c::wolfSSL_ErrorCodes_KEY_SHARE_ERROR
        | c::wolfSSL_ErrorCodes_BAD_KEY_SHARE_DATA
        | c::wolfSSL_ErrorCodes_EXT_MISSING
        | c::wolfSSL_ErrorCodes_ECC_CURVE_ERROR
        | c::wolfSSL_ErrorCodes_UNSUPPORTED_CERTIFICATE => Outcome::Mismatch,
        _ => Outcome::Garbage,
    }
}

fn words(code: c_int) -> String {
    let mut buffer: [c_char; 80] = [0; 80];
    let magnitude = c_long::from(code).unsigned_abs().wrapping_neg();
    // SAFETY: the buffer has the length that is given, and wolfSSL ends it with 0.
    unsafe {
        c::wolfSSL_ERR_error_string_n(magnitude, buffer.as_mut_ptr(), 80);
        format!("{} ({code})", text(buffer.as_ptr()))
    }
}

/// # Safety
/// `string` is null or ends with 0.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::failed(Outcome::Untrusted, "a name contains a NUL"))
}

fn length(bytes: &[u8]) -> c_long {
    c_long::try_from(bytes.len()).unwrap_or(c_long::MAX)
}

fn demand(result: c_int, what: &str) -> Result<(), Error> {
    if result == SUCCESS {
        return Ok(());
    }
    Err(Error::failed(Outcome::Unsupported, format!("wolfSSL refuses {what}: {}", words(result))))
}
