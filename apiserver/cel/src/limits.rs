//! What expressions may cost, in the units of kube-apiserver, and how large they may be.

/// What one evaluation of one expression may cost (`PerCallLimit`).
pub const CALL_COST_MAX: u64 = 1_000_000;
/// What all expressions of one policy may cost for one request (`RuntimeCELCostBudget`).
pub const POLICY_COST_MAX: u64 = 10_000_000;
/// What the match conditions of one policy may cost for one request (`RuntimeCELCostBudgetMatchConditions`).
pub const MATCH_COST_MAX: u64 = 2_500_000;
/// What one rule of a definition may cost by estimate (`StaticEstimatedCostLimit`).
pub const RULE_ESTIMATE_MAX: u64 = 10_000_000;
/// The largest object that estimates reckon with (`MaxRequestSizeBytes`).
pub const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;
/// The longest text that a message expression may give (`MaxEvaluatedMessageExpressionSizeBytes`).
pub const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// The longest expression in bytes. kube-apiserver takes 100,000 code points; what is longer than this limit is
/// refused when it is written.
pub const EXPRESSION_BYTES_MAX: usize = 16 * 1024;
/// How deep an expression may nest once its macros are expanded: evaluation recurses.
pub const EXPRESSION_DEPTH_MAX: usize = 80;
/// Stack of the thread that parses a long expression: the tree of an operator chain is as deep as the chain is long.
pub(crate) const PARSER_STACK_BYTES: usize = 256 * 1024 * 1024;
/// Parses that wait for the one thread that parses; further ones wait for a place among them.
pub(crate) const PARSES_WAITING_MAX: usize = 64;
/// How deep a tree may be, with what the metering adds, to be evaluated on the stack of the caller.
pub(crate) const SHALLOW_DEPTH_MAX: usize = 20;
/// Stack of the thread that evaluates a deeper tree.
pub(crate) const EVALUATOR_STACK_BYTES: usize = 64 * 1024 * 1024;
/// Deeper trees that are evaluated at the same time; further ones wait.
pub(crate) const DEEP_EVALUATIONS_MAX: usize = 4;
/// How large a compiled pattern may become, in bytes.
pub(crate) const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// How many compiled patterns a thread keeps.
pub(crate) const PATTERNS_MAX: usize = 64;
