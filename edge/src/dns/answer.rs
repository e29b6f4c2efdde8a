//! Computes the answer to a query from the zone, without sockets or a clock.

use std::collections::HashSet;
use std::net::IpAddr;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, HINFO, NS, PTR, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tombolo_grid::dns::zone::VERSION;
use tombolo_grid::dns::{Finding, NamedAddresses, Owner, Zone};

use super::ServedZone;
use super::authority::{Authority, NameLocation, TTL, address_record, target_name};
use super::message::{ANY_TTL, Question};
use super::private;

/// Longest chain of aliases that is followed.
const ALIASES_MAX: usize = 10;

/// Length of the shortest record in bytes, whose names are compression pointers. It bounds how many records fit into an
/// answer; no more are created.
const RECORD_LEN_MIN: u16 = 14;

/// Time to live of the record that names the DNS specification version, as in CoreDNS.
const VERSION_TTL: u32 = 28_800;

/// How a query is answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// With this message.
    Known(Message),
    /// With SERVFAIL, because this node does not know the deciding objects yet.
    Unknown(Message),
    /// With REFUSED, because this server does not support such queries.
    Refused(Message),
    /// With an alias, whose target other servers may know.
    Alias(Message, Name),
    /// By other servers.
    Elsewhere,
}

/// The answer to a query, with no more records than fit into `room` bytes.
pub(super) fn answer(authority: &Authority, known: &ServedZone, question: &Question, room: u16) -> Answer {
    let records_max = usize::from(room / RECORD_LEN_MIN);
    let context =
        QueryContext { authority, known, question, record_type: question.record_type(), records_max };
    let name = question.query.name();
    match authority.locate(name) {
        NameLocation::Here(below) => context.in_zone(&below),
        NameLocation::HereOdd => context.no_name(),
        NameLocation::Elsewhere => context.elsewhere(name),
    }
}

struct QueryContext<'a> {
    authority: &'a Authority,
    known: &'a ServedZone,
    question: &'a Question,
    record_type: RecordType,
    records_max: usize,
}

impl QueryContext<'_> {
    fn zone(&self) -> &Zone {
        &self.known.zone
    }

    fn name(&self) -> Name {
        self.question.query.name().clone()
    }

    /// A record of the queried name.
    fn record(&self, data: RData) -> Record {
        Record::from_rdata(self.name(), TTL, data)
    }

    fn elsewhere(&self, name: &Name) -> Answer {
        match self.record_type {
            RecordType::PTR => {
                let Some(address) = reverse(name) else { return self.outside(name) };
                let names = self.zone().owners(address, self.records_max);
                let names = names.iter().filter_map(|owner| self.authority.below(&owner_name(owner)));
                let records: Vec<Record> = names.map(|name| self.record(RData::PTR(PTR(name)))).collect();
                if records.is_empty() { self.outside(name) } else { self.found(records, Vec::new()) }
            }
            RecordType::ANY => {
                // ANY queries turn small packets into large answers.
                let nothing = HINFO::new("RFC8482".to_owned(), String::new());
                let record = Record::from_rdata(self.name(), ANY_TTL, RData::HINFO(nothing));
                let mut reply = self.question.reply(ResponseCode::NoError);
                reply.add_answer(record);
                Answer::Known(reply)
            }
            RecordType::AXFR | RecordType::IXFR => self.refused(),
            _ => self.outside(name),
        }
    }

    /// Forwards the query, except reverse lookups of private addresses: servers outside do not know these addresses and
    /// must not learn about them.
    fn outside(&self, name: &Name) -> Answer {
        let Some(zone) = private::zone_of(name).filter(|_| !self.authority.forwards_private) else {
            return Answer::Elsewhere;
        };
        let serial = self.known.serial;
        let soa = self.authority.soa_of(zone.clone(), serial);
        if self.record_type == RecordType::SOA && *name == zone {
            return self.found(vec![soa], Vec::new());
        }
        // Names above an address and addresses with a name exist. NXDOMAIN would deny everything below them (RFC 8020).
        let exists = reverse(name).is_none_or(|address| !self.zone().owners(address, 1).is_empty());
        let code = if exists { ResponseCode::NoError } else { ResponseCode::NXDomain };
        let mut reply = self.question.reply(code);
        reply.metadata.authoritative = true;
        reply.add_authority(soa);
        Answer::Known(reply)
    }

    fn in_zone(&self, below: &str) -> Answer {
        match self.record_type {
            RecordType::AXFR | RecordType::IXFR => return self.refused(),
            RecordType::SOA if below.is_empty() => {
                return self.found(vec![self.authority.soa(self.known.serial)], Vec::new());
            }
            RecordType::NS if below.is_empty() => return self.name_servers(),
            _ if below == "ns.dns" => return self.of_family(self.authority.own_address(&self.name())),
            _ => {}
        }
        match self.zone().find(below) {
            Finding::Unknown => Answer::Unknown(self.question.reply(ResponseCode::ServFail)),
            Finding::NoName => self.no_name(),
            Finding::Empty => self.no_data(),
            Finding::Version if self.record_type == RecordType::TXT => {
                let text = RData::TXT(TXT::new(vec![VERSION.to_owned()]));
                self.found(vec![Record::from_rdata(self.name(), VERSION_TTL, text)], Vec::new())
            }
            Finding::Version => self.no_data(),
            Finding::External(target) => self.alias(target),
            Finding::NamedAddresses(named_addresses) if self.record_type == RecordType::SRV => {
                self.services(named_addresses)
            }
            Finding::NamedAddresses(named_addresses) => self.addresses(named_addresses.addresses()),
            Finding::Uniform(addresses) => self.addresses(addresses.iter().copied()),
            Finding::Pod(address) => self.addresses([address].into_iter()),
        }
    }

    fn name_servers(&self) -> Answer {
        let Some(name) = self.authority.below("ns.dns") else { return self.no_data() };
        match self.authority.own_address(&name) {
            Some(address) => self.found(vec![self.record(RData::NS(NS(name)))], vec![address]),
            None => self.no_data(),
        }
    }

    /// This record, if it has the queried type.
    fn of_family(&self, record: Option<Record>) -> Answer {
        let records = record.filter(|record| record.record_type() == self.record_type);
        self.found(records.into_iter().collect(), Vec::new())
    }

    fn addresses(&self, addresses: impl Iterator<Item = IpAddr> + Clone) -> Answer {
        let records = self.records_of(&self.name(), addresses);
        self.found(records, Vec::new())
    }

    /// Address records of the queried family without duplicates, in rotating order.
    fn records_of(&self, name: &Name, addresses: impl Iterator<Item = IpAddr> + Clone) -> Vec<Record> {
        let wanted = addresses.filter(|address| match self.record_type {
            RecordType::A => address.is_ipv4(),
            RecordType::AAAA => address.is_ipv6(),
            _ => false,
        });
        // Clients use the first address. Identifiers are random, so each address takes its turn.
        let first = usize::from(self.question.header.id) % wanted.clone().count().max(1);
        let turned = wanted.clone().skip(first).chain(wanted.take(first));
        let mut seen = HashSet::new();
        let once = turned.filter(|address| seen.insert(*address)).take(self.records_max);
        once.map(|address| address_record(name.clone(), address)).collect()
    }

    fn services(&self, named_addresses: NamedAddresses<'_>) -> Answer {
        let count = named_addresses.len();
        let weight = u16::try_from(100 / count.max(1)).unwrap_or(1).max(1);
        let (mut records, mut extra) = (Vec::new(), Vec::new());
        let (mut targets, mut addresses) = (HashSet::new(), HashSet::new());
        for named in named_addresses.iter().take(self.records_max) {
            let Some(port) = named.port else { continue };
            let Some(target) = self.authority.below(&target_name(&named)) else { continue };
            if targets.insert((target.clone(), port)) {
                records.push(self.record(RData::SRV(SRV::new(0, weight, port, target.clone()))));
            }
            if addresses.insert((target.clone(), named.address)) {
                extra.push(address_record(target, named.address));
            }
        }
        if records.is_empty() {
            return self.no_data();
        }
        let mut reply = self.with(records, extra);
        reply.metadata.truncation = count > self.records_max;
        Answer::Known(reply)
    }

    /// Follows an external name as long as it stays in the zone.
    fn alias(&self, target: &str) -> Answer {
        let (mut owner, mut target) = (self.name(), target.to_owned());
        let mut aliases: Vec<Record> = Vec::new();
        loop {
            let Ok(name) = Name::from_ascii(format!("{target}.")) else { return self.no_data() };
            let alias = Record::from_rdata(owner, TTL, RData::CNAME(CNAME(name.clone())));
            match self.record_type {
                RecordType::CNAME => return self.found(vec![alias], Vec::new()),
                RecordType::A | RecordType::AAAA => {}
                _ => return self.no_data(),
            }
            let known = aliases.iter().any(|alias| alias.data == RData::CNAME(CNAME(name.clone())));
            if known || aliases.len() >= ALIASES_MAX {
                return self.no_data();
            }
            aliases.push(alias);
            let below = match self.authority.locate(&name) {
                NameLocation::Here(below) => below,
                NameLocation::HereOdd => return self.no_data(),
                NameLocation::Elsewhere => return Answer::Alias(self.with(aliases, Vec::new()), name),
            };
            let records = match self.zone().find(&below) {
                Finding::External(next) => {
                    (owner, target) = (name, next.to_owned());
                    continue;
                }
                Finding::Unknown => return Answer::Unknown(self.question.reply(ResponseCode::ServFail)),
                Finding::NamedAddresses(named_addresses) => {
                    self.records_of(&name, named_addresses.addresses())
                }
                Finding::Uniform(addresses) => self.records_of(&name, addresses.iter().copied()),
                Finding::Pod(address) => self.records_of(&name, [address].into_iter()),
                Finding::NoName | Finding::Empty | Finding::Version => Vec::new(),
            };
            if records.is_empty() {
                return self.no_data();
            }
            aliases.extend(records);
            return self.found(aliases, Vec::new());
        }
    }

    fn found(&self, records: Vec<Record>, extra: Vec<Record>) -> Answer {
        if records.is_empty() { self.no_data() } else { Answer::Known(self.with(records, extra)) }
    }

    fn with(&self, records: Vec<Record>, extra: Vec<Record>) -> Message {
        let mut reply = self.question.reply(ResponseCode::NoError);
        reply.metadata.authoritative = true;
        reply.answers = records;
        reply.additionals = extra;
        reply
    }

    fn no_data(&self) -> Answer {
        self.nothing(ResponseCode::NoError)
    }

    fn no_name(&self) -> Answer {
        self.nothing(ResponseCode::NXDomain)
    }

    fn nothing(&self, code: ResponseCode) -> Answer {
        let mut reply = self.question.reply(code);
        reply.metadata.authoritative = true;
        reply.add_authority(self.authority.soa(self.known.serial));
        Answer::Known(reply)
    }

    fn refused(&self) -> Answer {
        Answer::Refused(self.question.reply(ResponseCode::Refused))
    }
}

/// The complete address that a name of `in-addr.arpa` or `ip6.arpa` stands for; none for a part of an address.
fn reverse(name: &Name) -> Option<IpAddr> {
    let net = name.parse_arpa_name().ok()?;
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

fn owner_name(Owner { label, service }: &Owner) -> String {
    let (name, namespace) = (&service.name, &service.namespace);
    match label {
        Some(label) => format!("{label}.{name}.{namespace}.svc"),
        None => format!("{name}.{namespace}.svc"),
    }
}
