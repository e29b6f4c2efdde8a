//! Limits on the cost of expressions, in kube-apiserver's units, and on their size.

/// Maximum cost of one evaluation of one expression (`PerCallLimit`).
pub const CALL_COST_MAX: u64 = 1_000_000;
/// Maximum cost of all expressions of one policy for one request (`RuntimeCELCostBudget`).
pub const POLICY_COST_MAX: u64 = 10_000_000;
/// Maximum cost of one policy's match conditions for one request (`RuntimeCELCostBudgetMatchConditions`).
pub const MATCH_COST_MAX: u64 = 2_500_000;
/// Maximum estimated cost of one rule of a definition (`StaticEstimatedCostLimit`).
pub const RULE_ESTIMATE_MAX: u64 = 10_000_000;
/// Maximum object size that estimates assume (`MaxRequestSizeBytes`).
pub const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;
/// Maximum length of the result of a message expression (`MaxEvaluatedMessageExpressionSizeBytes`).
pub const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// Maximum length of an expression in bytes. kube-apiserver accepts 100,000 code points; longer expressions than this
/// limit are refused when they are written.
pub const EXPRESSION_BYTES_MAX: usize = 16 * 1024;
/// Maximum depth of an expression after macro expansion, because evaluation recurses.
pub const EXPRESSION_DEPTH_MAX: usize = 80;
/// Stack size of the thread that parses a long expression: the tree of an operator chain is as deep as the chain is
/// long.
pub(crate) const PARSER_STACK_BYTES: usize = 256 * 1024 * 1024;
/// Maximum number of parses in the queue of the single parser thread; further callers wait for a slot in the queue.
pub(crate) const PARSES_WAITING_MAX: usize = 64;
/// Maximum depth of a tree, with the metering nodes, that is evaluated on the caller's stack.
pub(crate) const SHALLOW_DEPTH_MAX: usize = 20;
/// Stack size of the thread that evaluates a deeper tree.
pub(crate) const EVALUATOR_STACK_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of deeper trees that are evaluated at the same time; further ones wait.
pub(crate) const DEEP_EVALUATIONS_MAX: usize = 4;
/// Maximum size of a compiled pattern in bytes.
pub(crate) const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of compiled patterns that a thread keeps.
pub(crate) const PATTERNS_MAX: usize = 64;
