//! Query parameters of writes.

/// How to handle fields that the kind does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and warn.
    #[default]
    Warn,
    /// Refuse the request.
    Strict,
}

/// Query parameters of a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// `dryRun=All`: do everything except storing.
    pub dry_run: bool,
    /// `fieldManager`, or its default (the user agent up to its first slash).
    pub field_manager: String,
    /// Whether `fieldManager` was given.
    pub field_manager_given: bool,
    /// `force` of a server-side apply.
    pub force: bool,
    /// `fieldValidation`.
    pub field_validation: FieldValidation,
    /// `labelSelector` of a collection deletion.
    pub label_selector: String,
    /// `fieldSelector` of a collection deletion.
    pub field_selector: String,
}
