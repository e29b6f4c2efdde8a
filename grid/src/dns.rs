//! Names of the cluster domain, as CoreDNS's `kubernetes` and `hosts` plugins read Services, EndpointSlices and the uniform
//! names of grids (DNS-Based Service Discovery of Kubernetes, version 1.1.0). What has which wire format is not known here.

pub mod records;
pub mod zone;

mod namespace;
mod owners;
mod places;

#[cfg(test)]
mod tests;

pub use places::{Place, Places};
pub use records::{Endpoint, Port, Protocol, Service, Slice, Target};
pub use zone::{Finding, Owner, Part, Zone};
