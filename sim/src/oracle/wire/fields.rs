//! The wire format of protobuf: numbers, and fields with a length.

use std::fmt;

/// Why bytes are not what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadableField(pub(super) &'static str);

impl fmt::Display for UnreadableField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[derive(Debug, Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of one message, in order.
#[derive(Debug, Default)]
pub(super) struct Fields<'a>(Vec<(u32, Field<'a>)>);

impl<'a> Fields<'a> {
    pub(super) fn read(mut bytes: &'a [u8]) -> Result<Self, UnreadableField> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let number = u32::try_from(tag >> 3).map_err(|_| UnreadableField("a field number"))?;
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)?),
                1 => {
                    let taken = take(&mut bytes, 8)?;
                    Field::Number(taken.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
                }
                2 => {
                    let length = varint(&mut bytes)?;
                    Field::Bytes(take(&mut bytes, usize::try_from(length).unwrap_or(usize::MAX))?)
                }
                5 => {
                    let taken = take(&mut bytes, 4)?;
                    Field::Number(taken.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
                }
                _ => return Err(UnreadableField("a wire type")),
            };
            fields.push((number, field));
        }
        Ok(Self(fields))
    }

    /// The field of a message that has exactly one.
    pub(super) fn only(&self) -> Option<(u32, &'a [u8])> {
        match self.0[..] {
            [(number, Field::Bytes(bytes))] => Some((number, bytes)),
            _ => None,
        }
    }

    /// The last of these counts; 0 if there is none.
    pub(super) fn number(&self, number: u32) -> u64 {
        let found = self.0.iter().rev().find_map(|(field, value)| match value {
            Field::Number(value) if *field == number => Some(*value),
            _ => None,
        });
        found.unwrap_or(0)
    }

    pub(super) fn bytes(&self, number: u32) -> Option<&'a [u8]> {
        self.all(number).last()
    }

    pub(super) fn text(&self, number: u32) -> Option<String> {
        self.bytes(number).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) fn message(&self, number: u32) -> Result<Option<Self>, UnreadableField> {
        self.bytes(number).map(Self::read).transpose()
    }

    pub(super) fn messages(&self, number: u32) -> Result<Vec<Self>, UnreadableField> {
        self.all(number).map(Self::read).collect()
    }

    fn all(&self, number: u32) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |(field, value)| match value {
            Field::Bytes(bytes) if *field == number => Some(*bytes),
            _ => None,
        })
    }
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], UnreadableField> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(UnreadableField("a field that ends early"))?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, UnreadableField> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(UnreadableField("a number without end"))
}

#[cfg(test)]
pub(super) mod testing {
    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        bytes.push(u8::try_from(value).unwrap());
        bytes
    }

    /// A field with a number.
    pub(crate) fn number(field: u64, value: u64) -> Vec<u8> {
        [varint(field << 3), varint(value)].concat()
    }

    /// A field with bytes.
    pub(crate) fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
        [varint((field << 3) | 2), varint(value.len() as u64), value.to_vec()].concat()
    }
}
