//! Types of the function libraries.

/// Declares a library type by its name, with comparison and copying as in Rust.
macro_rules! opaque {
    ($ty:ident, $name:literal) => {
        static TYPE: cel::common::types::Type = cel::common::types::Type::new_unspecified_type($name);

        impl cel::common::value::Val for $ty {
            fn get_type(&self) -> &cel::common::types::Type {
                &TYPE
            }

            fn cel_type() -> &'static cel::common::types::Type {
                &TYPE
            }

            fn equals(&self, other: &dyn cel::common::value::Val) -> bool {
                other.downcast_ref::<Self>().is_some_and(|other| self == other)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn cel::common::value::Val + 'v> {
                Box::new(self.clone())
            }

            fn as_any(&self) -> Option<&dyn std::any::Any> {
                Some(self)
            }
        }

        impl cel::common::value::StaticVal for $ty {}
    };
}
pub(crate) use opaque;
