//! Warnings about overlapping files in a volume.

use super::super::field::Field;

/// A file and its source.
#[derive(Clone, PartialEq)]
struct VolumeFile {
    path: String,
    of: String,
}

impl VolumeFile {
    fn new(path: &str, of: &str) -> Self {
        Self { path: path.trim_end_matches('/').to_owned(), of: of.to_owned() }
    }

    fn shown(&self) -> String {
        match self.of.as_str() {
            "" => format!("{:?}", self.path),
            of => format!("{:?} ({of})", self.path),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (own, other) = (format!("{}/", self.path), format!("{}/", other.path));
        own != "/" && other != "/" && (own.starts_with(&other) || other.starts_with(&own))
    }
}

/// Warnings about the volumes of a pod.
pub(super) fn overlaps(volumes: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for volume in volumes.items() {
        let name = volume.child("name").text();
        for (source, field, what) in
            [("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret"), ("downwardAPI", "", "")]
        {
            let source = volume.child(source);
            let shown = match what {
                "" => "DownwardAPI".to_owned(),
                what => format!("{what} {:?}", source.child(field).text()),
            };
            let files = files(&source, "");
            check(&files, &format!("volume {name:?} ({shown})"), warnings);
        }
        projected(&volume.child("projected"), name, warnings);
    }
}

fn files(source: &Field<'_, '_>, of: &str) -> Vec<VolumeFile> {
    let items = source.child("items");
    items.items().map(|item| VolumeFile::new(item.child("path").text(), of)).collect()
}

fn projected(volume: &Field<'_, '_>, name: &str, warnings: &mut Vec<String>) {
    let mut all: Vec<VolumeFile> = Vec::new();
    let shown = format!("volume {name:?} (Projected)");
    for source in volume.child("sources").items() {
        if source.is_empty() {
            warnings.push(format!("{shown} has no sources provided"));
        }
        for file in of_source(&source) {
            all.push(file);
            check_last(&all, &shown, warnings);
        }
    }
}

/// Files of one source of a projected volume.
fn of_source(source: &Field<'_, '_>) -> Vec<VolumeFile> {
    let part = |kind| source.child(kind);
    let named = |what: &str, part: &Field<'_, '_>| format!("{what} {:?}", part.child("name").text());
    let (map, secret, pod) = (part("configMap"), part("secret"), part("downwardAPI"));
    let token = part("serviceAccountToken");
    if !map.child("items").is_empty() {
        files(&map, &named("ConfigMap", &map))
    } else if !secret.child("items").is_empty() {
        files(&secret, &named("Secret", &secret))
    } else if !pod.child("items").is_empty() {
        files(&pod, "DownwardAPI")
    } else if token.is_set() {
        vec![VolumeFile::new(token.child("path").text(), "ServiceAccountToken")]
    } else {
        Vec::new()
    }
}

/// Compares each file with those before it.
fn check(files: &[VolumeFile], shown: &str, warnings: &mut Vec<String>) {
    (1..=files.len()).for_each(|count| check_last(&files[..count], shown, warnings));
}

fn check_last(files: &[VolumeFile], shown: &str, warnings: &mut Vec<String>) {
    let Some((file, before)) = files.split_last() else { return };
    for other in before.iter().filter(|other| file.overlaps(other)) {
        warnings.push(format!("{shown}: overlapping paths: {} with {}", file.shown(), other.shown()));
    }
}
