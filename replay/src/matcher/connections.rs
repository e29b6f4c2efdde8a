//! Connections of the run: when they begin, and why they are over.

use std::collections::HashSet;

use super::Matcher;
use crate::rules::Rule;

impl Matcher<'_> {
    /// The cloud has ended a connection: with its Node, because of the next one, or for another reason, which excuses nothing.
    pub fn ended(&mut self, conn: u64) {
        let deleted = self.without_node.get(self.transcript.node_of(conn)).copied();
        let deleted = deleted.map(|line| (line, Rule::JoinsAgain));
        let next = || Some((self.next_connection(conn)?, Rule::Replaced));
        if let Some(over) = deleted.or_else(next) {
            self.over.entry(conn).or_insert(over);
        }
    }

    /// The first line of the connection that its node has made after this one; none before the run has begun it.
    fn next_connection(&self, conn: u64) -> Option<usize> {
        let node = self.transcript.node_of(conn);
        let mut known = HashSet::new();
        let lines = self.transcript.lines.iter().enumerate();
        let mut begin = lines.filter_map(|(index, line)| {
            let conn = line.conn?;
            known.insert(conn).then_some((index, conn))
        });
        begin.find(|(_, other)| *other == conn)?;
        let later =
            begin.find(|(_, other)| self.begun.contains(other) && self.transcript.node_of(*other) == node);
        later.map(|(index, _)| index)
    }

    /// A connection begins. Tells whether its node joins again before that, because its Node was deleted.
    pub fn connected(&mut self, conn: u64) -> bool {
        self.begun.insert(conn);
        let deleted = self.without_node.remove(self.transcript.node_of(conn)).is_some();
        if deleted {
            self.rules.count(Rule::JoinsAgain);
        }
        deleted
    }

    /// Why a connection had ended before this line.
    pub(super) fn is_over(&self, conn: Option<u64>, index: usize) -> Option<Rule> {
        let over = conn.and_then(|conn| self.over.get(&conn))?;
        (over.0 < index).then_some(over.1)
    }
}
