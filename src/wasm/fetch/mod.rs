//! How servers of plugins are reached: guard, proxies, TLS, redirects, and attempts that end with the deadline.

mod client;
mod guard;
mod proxies;
mod web;

pub(super) use client::{Ask, Client, Error};
pub(super) use guard::{Block, Guard};
pub(super) use proxies::Proxies;
pub(super) use web::{Attempts, fetch, split_login};

use std::time::{Duration, SystemTime};

use crate::{base::later, net::http1::client::Response};

/// How long an answer asks to be left alone (`Retry-After`, seconds or a date; RFC 9110 §10.2.3).
pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    delay(response.headers.get("retry-after")?.trim(), SystemTime::now())
}

fn delay(value: &str, now: SystemTime) -> Option<Duration> {
    let seconds = value.parse().ok().map(Duration::from_secs);
    seconds.or_else(|| Some(date(value)?.duration_since(now).unwrap_or_default()))
}

/// IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 §5.6.7); the obsolete forms are not read.
fn date(value: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = value.split(' ').collect();
    let [_, day, month, year, time, "GMT"] = words[..] else { return None };
    let clock: Vec<u8> = time.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [hour, minute, second] = clock[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let day = day.parse().ok()?;
    der::DateTime::new(year.parse().ok()?, u8::try_from(month).ok()?, day, hour, minute, second)
        .ok()
        .map(|date| date.to_system_time())
}

/// Waits before another attempt; `false`, at once, when the deadline comes first.
pub(super) async fn pause(delay: Duration, deadline: tokio::time::Instant) -> bool {
    let until = later(tokio::time::Instant::now(), delay);
    let in_time = until < deadline;
    if in_time {
        tokio::time::sleep_until(until).await;
    }
    in_time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pause_longer_than_any_clock_ends_at_once() {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(1);
        let asked = delay("9999999999999999999", SystemTime::now());
        assert!(!pause(asked.unwrap(), deadline).await);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 90);
        for (value, expected) in [
            ("120", Some(120)),
            ("0", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(90)),
            ("Sun, 06 Nov 1994 08:48:07 GMT", Some(0)),
            ("Thu, 03 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Now 1994 08:49:37 GMT", None),
            ("Sun, 36 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("-1", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(delay(value, now), expected.map(Duration::from_secs), "{value}");
        }
    }
}
