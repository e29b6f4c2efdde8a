//! Names of the cluster domain, as CoreDNS's `kubernetes` and `hosts` plugins derive them from Services,
//! EndpointSlices and the uniform names of grids (DNS-Based Service Discovery of Kubernetes, version 1.1.0). The wire
//! format is handled elsewhere.

pub mod records;
pub mod zone;

mod named_addresses;
mod namespace;
mod owners;

#[cfg(test)]
mod tests;

pub use named_addresses::{NamedAddress, NamedAddresses};
pub use records::{Endpoint, Port, Protocol, Service, Slice, Target};
pub use zone::{Finding, Owner, Part, Zone};
