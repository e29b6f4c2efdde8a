//! IP addresses and networks (`net.IP`, `net.CIDR`).

use core::net::IpAddr;

use cel::common::types::{CelBool, CelInt, CelString};
use cel::{DeclarationError, Env, ExecutionError};

mod address {
    use crate::opaque::opaque;

    #[derive(Debug, Clone, PartialEq)]
    pub(super) struct Address(pub(super) core::net::IpAddr);

    opaque!(Address, "net.IP");
}

mod prefix {
    use crate::opaque::opaque;

    /// An address with the prefix length of its network.
    #[derive(Debug, Clone, PartialEq)]
    pub(super) struct Network(pub(super) core::net::IpAddr, pub(super) u8);

    opaque!(Network, "net.CIDR");
}

use address::Address;
use prefix::Network;

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(env, fn parse_ip: (CelString<'_>) -> Result<Address>, name = "ip")?;
    cel::add_overload!(env, fn is_ip: (CelString<'_>) -> CelBool, name = "isIP")?;
    cel::add_overload!(env, fn is_canonical: (CelString<'_>) -> Result<CelBool>, name = "ip.isCanonical")?;
    cel::add_overload!(env, fn ip_text: (Address) -> CelString<'static>, name = "string")?;
    cel::add_member_overload!(env, fn family: (Address) -> CelInt)?;
    cel::add_member_overload!(env, fn is_unspecified: (Address) -> CelBool)?;
    cel::add_member_overload!(env, fn is_loopback: (Address) -> CelBool)?;
    cel::add_member_overload!(env, fn is_link_local_multicast: (Address) -> CelBool)?;
    cel::add_member_overload!(env, fn is_link_local_unicast: (Address) -> CelBool)?;
    cel::add_member_overload!(env, fn is_global_unicast: (Address) -> CelBool)?;
    cel::add_overload!(env, fn parse_cidr: (CelString<'_>) -> Result<Network>, name = "cidr")?;
    cel::add_overload!(env, fn is_cidr: (CelString<'_>) -> CelBool, name = "isCIDR")?;
    cel::add_overload!(env, fn cidr_text: (Network) -> CelString<'static>, name = "string")?;
    cel::add_member_overload!(env, fn contains_ip: (Network, Address) -> CelBool, name = "containsIP")?;
    cel::add_member_overload!(env, fn contains_ip_text: (Network, CelString<'_>) -> Result<CelBool>, name = "containsIP")?;
    cel::add_member_overload!(env, fn contains_cidr: (Network, Network) -> CelBool, name = "containsCIDR")?;
    cel::add_member_overload!(env, fn contains_cidr_text: (Network, CelString<'_>) -> Result<CelBool>,
        name = "containsCIDR")?;
    cel::add_member_overload!(env, fn ip: (Network) -> Address)?;
    cel::add_member_overload!(env, fn prefix_length: (Network) -> CelInt)?;
    cel::add_member_overload!(env, fn masked: (Network) -> Network)
}

/// Parses an address. Zones and IPv4-mapped IPv6 addresses are refused, as in kube-apiserver.
fn read_ip(text: &str) -> Result<IpAddr, ExecutionError> {
    let error = |why: &str| ExecutionError::function_error("ip", why);
    if text.contains('%') {
        return Err(error(&format!("IP address with zone value is not allowed: {text}")));
    }
    let address: IpAddr =
        text.parse().map_err(|_| error("IP Address parse error during conversion from string"))?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(error("IPv4-mapped IPv6 address is not allowed"))
        }
        address => Ok(address),
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn read_cidr(text: &str) -> Result<Network, ExecutionError> {
    let error = || {
        ExecutionError::function_error("cidr", "network address parse error during conversion from string")
    };
    let (address, bits) = text.split_once('/').ok_or_else(error)?;
    let address = read_ip(address)?;
    let plain = !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && (bits == "0" || !bits.starts_with('0'));
    let bits: u8 = if plain { bits.parse().map_err(|_| error())? } else { return Err(error()) };
    if bits > width(address) { Err(error()) } else { Ok(Network(address, bits)) }
}

/// The address with all bits after the prefix set to zero.
fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

fn holds(network: &Network, address: IpAddr) -> bool {
    network.0.is_ipv4() == address.is_ipv4() && mask(network.0, network.1) == mask(address, network.1)
}

fn parse_ip(text: &CelString<'_>) -> Result<Address, ExecutionError> {
    read_ip(text.inner()).map(Address)
}

fn is_ip(text: &CelString<'_>) -> CelBool {
    read_ip(text.inner()).is_ok().into()
}

fn is_canonical(text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok((read_ip(text.inner())?.to_string() == text.inner()).into())
}

fn ip_text(address: &Address) -> CelString<'static> {
    address.0.to_string().into()
}

fn family(address: &Address) -> CelInt {
    CelInt::from(if address.0.is_ipv4() { 4 } else { 6 })
}

fn is_unspecified(address: &Address) -> CelBool {
    address.0.is_unspecified().into()
}

fn is_loopback(address: &Address) -> CelBool {
    address.0.is_loopback().into()
}

fn is_link_local_multicast(address: &Address) -> CelBool {
    let is = match address.0 {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.octets()[0] == 0xff && v6.octets()[1] & 0x0f == 0x02,
    };
    is.into()
}

fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn is_link_local_unicast(address: &Address) -> CelBool {
    link_local(address.0).into()
}

fn is_global_unicast(address: &Address) -> CelBool {
    let broadcast = matches!(address.0, IpAddr::V4(v4) if v4.is_broadcast());
    let ip = address.0;
    (!broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local(ip)).into()
}

fn parse_cidr(text: &CelString<'_>) -> Result<Network, ExecutionError> {
    read_cidr(text.inner())
}

fn is_cidr(text: &CelString<'_>) -> CelBool {
    read_cidr(text.inner()).is_ok().into()
}

fn cidr_text(network: &Network) -> CelString<'static> {
    format!("{}/{}", network.0, network.1).into()
}

fn contains_ip(network: &Network, address: &Address) -> CelBool {
    holds(network, address.0).into()
}

fn contains_ip_text(network: &Network, text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(holds(network, read_ip(text.inner())?).into())
}

fn contains_cidr(network: &Network, other: &Network) -> CelBool {
    (network.1 <= other.1 && holds(network, other.0)).into()
}

fn contains_cidr_text(network: &Network, text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(contains_cidr(network, &read_cidr(text.inner())?))
}

fn ip(network: &Network) -> Address {
    Address(network.0)
}

fn prefix_length(network: &Network) -> CelInt {
    i64::from(network.1).into()
}

fn masked(network: &Network) -> Network {
    Network(mask(network.0, network.1), network.1)
}
