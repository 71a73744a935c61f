//! The steps that lead from the root directory to what a path means, through every link on the way.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs,
    path::{Component, Path, PathBuf},
};

/// Links followed in one path, as Linux (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// One step: `name` was looked up in `directory`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub directory: PathBuf,
    pub name: OsString,
    /// Whether nothing of the path follows: here the file itself is looked up, so that its contents matter too.
    pub last: bool,
}

/// Calls `visit` before each step is looked up, so that a watch is there before the look; a step that does not exist is
/// visited, those below it as well.
pub(super) fn walk(path: &Path, mut visit: impl FnMut(&Step)) {
    let mut at = PathBuf::from("/");
    let mut rest = names(path);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let step = Step { directory: at.clone(), name, last: rest.is_empty() };
        visit(&step);
        at.push(&step.name);
        if let Ok(target) = fs::read_link(&at)
            && links < MAX_LINKS
        {
            links += 1;
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for name in names(&target).into_iter().rev() {
                rest.push_front(name);
            }
        }
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}
