//! What the rooms show of themselves on `/debug/<name>`: each adds a function when it is built, `status` calls it when somebody asks.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

/// All pages; a clone is the same list.
#[derive(Clone, Default)]
pub struct Pages(Arc<Mutex<Vec<(&'static str, Page)>>>);

#[derive(Clone)]
enum Page {
    Summary(Arc<dyn Fn() -> Value + Send + Sync>),
    Document(Arc<dyn Fn() -> Option<String> + Send + Sync>),
}

impl Pages {
    /// Adds a room's state, which is part of the overview of the whole agent as well. Never with secrets in it.
    pub fn add(&self, name: &'static str, state: impl Fn() -> Value + Send + Sync + 'static) {
        self.pages().push((name, Page::Summary(Arc::new(state))));
    }

    /// Adds a JSON document that is shown on its own page only; `None` while there is none.
    pub fn add_document(&self, name: &'static str, document: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.pages().push((name, Page::Document(Arc::new(document))));
    }

    /// The page of that name as JSON text: `None` for an unknown name, `Some(None)` for a page without content yet.
    pub fn get(&self, name: &str) -> Option<Option<String>> {
        // The room's function may take its time, and locks: it runs without ours.
        let page = self.pages().iter().find(|(other, _)| *other == name).map(|(_, page)| page.clone());
        page.map(|page| match page {
            Page::Summary(state) => Some(state().to_string()),
            Page::Document(document) => document(),
        })
    }

    /// The state of every room, in the order in which they were added.
    pub fn all(&self) -> Vec<(&'static str, Value)> {
        let pages = self.pages().clone();
        let summaries = pages.into_iter().filter_map(|(name, page)| match page {
            Page::Summary(state) => Some((name, state())),
            Page::Document(_) => None,
        });
        summaries.collect()
    }

    fn pages(&self) -> MutexGuard<'_, Vec<(&'static str, Page)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pages().iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_by_name_and_all_states() {
        let pages = Pages::default();
        pages.clone().add("dns", || serde_json::json!({"hosts": 2}));
        pages.add_document("ndsz", || None);
        assert_eq!(pages.get("dns"), Some(Some("{\"hosts\":2}".to_owned())));
        assert_eq!(pages.get("ndsz"), Some(None));
        assert_eq!(pages.get("xds"), None);
        assert_eq!(pages.all(), [("dns", serde_json::json!({"hosts": 2}))]);
    }
}
