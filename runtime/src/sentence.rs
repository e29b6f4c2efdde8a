//! Errors formatted for people.

use std::error::Error;

/// An error and its causes in one line. A cause that the text already contains is not repeated.
#[must_use]
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let cause = error.to_string();
        let cause = cause.split_whitespace().collect::<Vec<_>>().join(" ");
        if !cause.is_empty() && !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn layers(texts: &[&'static str]) -> Box<Layer> {
        let source = (texts.len() > 1).then(|| layers(&texts[1..]));
        Box::new(Layer { text: texts[0], source })
    }

    #[test]
    fn causes_appear_once_and_in_one_line() {
        let told = layers(&["no hub", "cannot listen: address in use", "address in use"]);
        assert_eq!(sentence(&*told), "no hub: cannot listen: address in use");
        assert_eq!(sentence(&*layers(&["cannot write", "", "disk\n  full"])), "cannot write: disk full");
    }
}
