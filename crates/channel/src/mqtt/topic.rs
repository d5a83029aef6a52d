//! Topic names and topic filters (MQTT 5.0, 4.7; the same in 3.1.1).

/// Whether something can be published to `topic`.
pub(super) fn is_name(topic: &str) -> bool {
    !topic.is_empty() && !topic.contains(['+', '#', '\0'])
}

/// Whether one can subscribe to `filter`. Shared subscriptions are not offered.
pub(super) fn is_filter(filter: &str) -> bool {
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let wild = level.contains(['+', '#']);
        if wild && level.len() > 1 || level == "#" && levels.peek().is_some() {
            return false;
        }
    }
    !filter.is_empty() && !filter.contains('\0') && !filter.starts_with("$share/")
}

/// Whether what is published to `topic` goes to a subscriber of `filter`.
pub(super) fn matches(filter: &str, topic: &str) -> bool {
    // 4.7.2: a wildcard does not stand for a first level that begins with `$`.
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_matches_the_filters_of_the_standard_and_no_others() {
        for (filter, topic, expected) in [
            ("sport/tennis/player1", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
            ("sport/tennis/+", "sport/tennis/player1", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("#", "anything/at/all", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "$SYS/load", false),
            ("+/load", "$SYS/load", false),
            ("$SYS/#", "$SYS/load", true),
            ("a/b", "a/c", false),
            ("a/b", "a", false),
            ("+", "é", true),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn wildcards_stand_alone_in_their_level_and_only_in_filters() {
        assert!(["a", "+", "#", "a/+/b", "a/#", "/", "+/#"].iter().all(|f| is_filter(f)));
        assert!(!["", "a+", "a/b#", "#/a", "a/#/b", "$share/g/a", "\0"].iter().any(|f| is_filter(f)));
        assert!(is_name("a/b") && is_name("/") && is_name("$SYS"));
        assert!(!is_name("") && !is_name("a/+") && !is_name("#") && !is_name("\0"));
    }
}
