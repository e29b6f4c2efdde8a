//! Sections of the file.

/// A section: camelCase keys with KubeEdge's defaults. As in Go, a key without a value has its default too.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[allow(dead_code, reason = "keys that mean nothing here are read so that a wrong type is found")]
        pub(super) struct $name { $(pub(super) $field: $kind,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize, Default)]
                #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
                struct SectionKeys { $($(#[$field_doc])* $field: Option<$kind>,)* }

                let keys = SectionKeys::deserialize(deserializer)?;
                Ok(Self { $($field: keys.$field.unwrap_or_else(|| $default),)* })
            }
        }
    };
}
pub(super) use section;
