use super::*;

#[test]
fn quantities_take_the_spelling_of_the_server() {
    let cases = [
        ("0", "0"),
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("100m", "100m"),
        ("1024Ki", "1Mi"),
        ("1536Mi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("1Gi", "1Gi"),
        ("512Ki", "512Ki"),
        ("1000k", "1M"),
        ("1e3", "1e3"),
        ("12e6", "12e6"),
        ("1E3", "1e3"),
        ("-5", "-5"),
        ("+5", "5"),
        ("0.0000000001", "1n"),
        ("1.1", "1100m"),
        ("64Mi", "64Mi"),
        ("99999999999999999999", "9223372036854775807"),
        ("5.", "5"),
        (".5", "500m"),
    ];
    for (given, expected) in cases {
        assert_eq!(Quantity::parse(given).unwrap().to_string(), expected, "{given}");
    }
}

#[test]
fn sums_keep_the_form_of_the_first_quantity() {
    let parse = |text| Quantity::parse(text).unwrap();
    let cases = [
        ("1Gi", "512Mi", "1536Mi"),
        ("0", "1Gi", "1Gi"),
        ("500m", "1", "1500m"),
        ("1G", "1Mi", "1001048576"),
    ];
    for (first, second, sum) in cases {
        assert_eq!((parse(first) + parse(second)).to_string(), sum);
        assert_eq!(parse(sum) - parse(second), parse(first));
    }
    assert_eq!((parse("9E") + parse("9E")).to_string(), "9223372036854775807");
    assert_eq!(["1500m", "2", "-1500m"].map(|text| parse(text).rounded_up()), [2, 2, -1].map(whole));
    fn whole(units: i32) -> Quantity {
        let size = Quantity::whole(units.unsigned_abs());
        if units < 0 { Quantity::ZERO - size } else { size }
    }
}

#[test]
fn invalid_quantities_are_refused() {
    for text in ["", "-", "x", "1.2.3", "1Kii", "1 Gi", "1e", "e3", "1ki", "0x10"] {
        assert!(Quantity::parse(text).is_err(), "{text}");
    }
}

#[test]
fn times_are_written_in_utc() {
    assert_eq!(time("2026-01-02T03:04:05+02:00").unwrap(), "2026-01-02T01:04:05Z");
    assert_eq!(micro_time("2026-01-02T03:04:05Z").unwrap(), "2026-01-02T03:04:05.000000Z");
    assert_eq!(micro_time("2026-01-02T03:04:05.1234567Z").unwrap(), "2026-01-02T03:04:05.123456Z");
    assert_eq!(time("yesterday"), None);
}

#[test]
fn formats_accept_and_refuse() {
    let cases = [
        ("date-time", "2026-01-02T03:04:05Z", "2026-01-02"),
        ("date", "2026-01-02", "2026-13-02"),
        ("ipv4", "10.0.0.1", "10.0.0.256"),
        ("ipv6", "::1", "10.0.0.1"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ("mac", "00:11:22:33:44:55", "00:11"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("uuid4", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
        ("email", "a@b.example", "a.b.example"),
        ("hostname", "a-b.example", "a_b!"),
        ("uri", "http://x/y", "no scheme"),
        ("byte", "YWJj", "%%%"),
        ("duration", "1h30m", "soon"),
        ("isbn", "978-3-16-148410-0", "978-3-16-148410-1"),
        ("creditcard", "4111 1111 1111 1111", "4111 1111 1111 1112"),
        ("hexcolor", "#a0b1c2", "#a0b1c"),
        ("rgbcolor", "rgb(1, 2, 3)", "rgb(1,2,300)"),
        ("ssn", "123-45-6789", "123456789"),
    ];
    for (format, good, bad) in cases {
        assert!(is_known_format(format), "{format}");
        assert!(matches_format(format, good), "{format} {good}");
        assert!(!matches_format(format, bad), "{format} {bad}");
    }
    assert!(matches_format("own-format", "anything"));
}
