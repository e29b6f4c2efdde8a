use proptest::prelude::*;

use super::*;

#[test]
fn header_matches_the_reference_vector() {
    let header = Header::new(Lane::Control, false, 5).expect("small");
    assert_eq!(header.encode(), [1, 1, 1, 0, 1, 0, 0, 0, 0, 5]);
    assert_eq!(Header::decode(&header.encode()), Ok(header));
}

#[test]
fn flags_carry_lane_and_continuation() {
    for lane in Lane::ALL {
        for more in [false, true] {
            let header = Header { lane, more, len: 7 };
            let flags = header.encode()[5];
            assert_eq!(flags, u8::from(more) | (lane.index() as u8) << 1);
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
}

#[test]
fn bad_headers_are_refused_before_any_payload() {
    let version = *b"GET / HTTP";
    let cases = [
        (version, PackageError::Version(*b"GET ")),
        ([1, 1, 1, 0, 2, 0, 0, 0, 0, 0], PackageError::Kind(2)),
        ([1, 1, 1, 0, 1, 0x80, 0, 0, 0, 0], PackageError::Flags(0x80)),
        ([1, 1, 1, 0, 1, 0x06, 0, 0, 0, 0], PackageError::Flags(0x06)),
        ([1, 1, 1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff], too_large("package", 0xffff_ffff)),
        ([1, 1, 1, 0, 1, 0, 2, 0, 0, 1], too_large("package", limits::FRAME_LEN_MAX + 1)),
    ];
    for (bytes, error) in cases {
        let mut reader = Reader::new();
        reader.push(&bytes);
        assert_eq!(reader.pop(), Err(error.clone()));
        reader.push(&[0; 100]);
        assert_eq!(reader.pop(), Err(error), "a lost stream stays lost");
        assert_eq!(reader.memory(), 0);
    }
    assert!(Header::decode(&[1, 9, 9, 9, 1, 0, 2, 0, 0, 0]).is_ok(), "other minor versions, exactly 32 MiB");
}

#[test]
fn declared_length_allocates_no_memory() {
    let mut reader = Reader::new();
    reader.push(&[1, 1, 1, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(reader.pop(), Ok(None));
    reader.push(b"abc");
    assert_eq!(reader.pop(), Ok(None));
    assert!(reader.memory() < 1024, "{}", reader.memory());
    assert!(!reader.is_between_packages());
}

#[test]
fn a_large_package_leaves_no_memory_behind() {
    let mut reader = Reader::new();
    reader.push(&whole(Lane::Bulk, &vec![7; 1024 * 1024]).expect("below the limit"));
    assert!(reader.pop().expect("a package").is_some());
    assert_eq!(reader.memory(), 0);
    assert!(reader.is_between_packages());
}

#[test]
fn websocket_messages_are_exactly_one_package() {
    let message = whole(Lane::Delivery, b"hello").expect("small");
    let package = Package::parse(&message).expect("whole");
    assert_eq!((package.lane, package.more, &package.payload[..]), (Lane::Delivery, false, &b"hello"[..]));
    let cases =
        [(message.slice(..9), 10), (message.slice(..14), 15), ([&message[..], b"x"].concat().into(), 15)];
    for (bytes, package) in cases {
        let message = bytes.len();
        assert_eq!(Package::parse(&bytes), Err(PackageError::Length { message, package }));
    }
}

#[test]
fn large_frames_are_cut() {
    let frame = Bytes::from(vec![1; limits::FRAGMENT_LEN + 1]);
    for lane in Lane::ALL {
        let lens = |frame: &Bytes| {
            let pieces = fragments(lane, frame.clone()).expect("below the limit");
            pieces.map(|piece| piece.len() - HEADER_LEN).collect::<Vec<_>>()
        };
        assert_eq!(lens(&frame), [limits::FRAGMENT_LEN, 1]);
        assert_eq!(lens(&frame.slice(1..)), [limits::FRAGMENT_LEN]);
        assert_eq!(lens(&Bytes::new()), [0]);
    }
    assert!(fragments(Lane::Bulk, vec![0; limits::FRAME_LEN_MAX + 1].into()).is_err());
}

#[test]
fn package_parts_beyond_the_limit_are_refused() {
    let mut assembler = Assembler::new();
    let piece = Bytes::from(vec![0; limits::FRAME_LEN_MAX / 2]);
    let package = |payload: &Bytes, more| Package { lane: Lane::Bulk, more, payload: payload.clone() };
    assert_eq!(assembler.accept(package(&piece, true)), Ok(None));
    assert_eq!(assembler.accept(package(&piece, true)), Ok(None));
    let error = assembler.accept(package(&Bytes::from_static(b"x"), false));
    assert_eq!(error, Err(too_large("frame", limits::FRAME_LEN_MAX + 1)));
    assert_eq!(assembler.accept(package(&Bytes::new(), true)), Err(PackageError::EmptyPiece));
}

proptest! {
    #[test]
    fn frames_survive_cutting_mixing_and_any_chunk_size(
        frames in proptest::collection::vec((0u8..3, 0usize..70_000), 1..6),
        chunk in 1usize..40_000,
    ) {
        let frames: Vec<(Lane, Bytes)> = frames
            .into_iter()
            .map(|(lane, len)| {
                let bytes = (0..len).map(|i| (i % 251) as u8).collect::<Vec<_>>();
                (Lane::from_number(lane).expect("below 3"), bytes.into())
            })
            .collect();
        let mut stream = Vec::new();
        // One piece of each lane in turn, like a sender with three queues.
        let mut queues: Vec<_> = Lane::ALL
            .map(|lane| {
                let of_lane = frames.iter().filter(|(of, _)| *of == lane);
                of_lane.flat_map(|(_, frame)| fragments(lane, frame.clone()).expect("small")).collect::<Vec<_>>()
            })
            .into_iter()
            .map(Vec::into_iter)
            .collect();
        while queues.iter().any(|queue| queue.len() > 0) {
            queues.iter_mut().filter_map(Iterator::next).for_each(|package| stream.extend_from_slice(&package));
        }
        let (mut reader, mut assembler, mut got) = (Reader::new(), Assembler::new(), Vec::new());
        for bytes in stream.chunks(chunk) {
            reader.push(bytes);
            while let Some(package) = reader.pop().expect("own packages") {
                got.extend(assembler.accept(package).expect("own pieces"));
            }
        }
        prop_assert!(reader.is_between_packages());
        for lane in Lane::ALL {
            let of_lane = |list: &[(Lane, Bytes)]| {
                list.iter().filter(|(of, _)| *of == lane).map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>()
            };
            prop_assert_eq!(of_lane(&got), of_lane(&frames));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = Reader::new();
        reader.push(&bytes);
        while let Ok(Some(_)) = reader.pop() {}
        let _ = Package::parse(&Bytes::from(bytes));
    }
}
