//! The checker on paused time, with commands that the test controls and an application that it scripts.

use tokio::net::TcpListener;

use super::*;
use crate::{base::Trigger, config::HealthCheck};

fn probe(check: HealthCheck) -> ReadinessProbe {
    ReadinessProbe { period_seconds: 1, timeout_seconds: 1, check: Some(check), ..ReadinessProbe::default() }
}

#[tokio::test]
async fn tcp_target_that_opens_and_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let check = HealthCheck::Tcp { host: String::new(), port };
    let (published, mut health) = watch::channel(None);
    let (_trigger, drain) = Trigger::new();
    let mut config = Config::new(&probe(check), "127.0.0.1", None);
    config.period = Duration::from_millis(5);
    let checker = tokio::spawn(Health::new(config, published).run(drain));
    for _ in 0..2 {
        health.changed().await.unwrap();
        assert!(
            matches!(&*health.borrow_and_update(), Some(AppHealth::Unhealthy(reason)) if reason.contains("refused"))
        );
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        health.changed().await.unwrap();
        assert_eq!(*health.borrow_and_update(), Some(AppHealth::Healthy));
        drop(listener);
    }
    checker.abort();
}

#[tokio::test]
async fn nothing_is_reported_after_the_farewell() {
    let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let check = HealthCheck::Tcp { host: String::new(), port: application.local_addr().unwrap().port() };
    let (published, mut health) = watch::channel(None);
    let (_trigger, drain) = Trigger::new();
    let mut config = Config::new(&probe(check), "127.0.0.1", None);
    config.period = Duration::from_millis(5);
    let checker = Health::new(config, published);
    let farewell = checker.farewell();
    let telling = tokio::spawn(async move { farewell.tell().await });
    health.changed().await.unwrap();
    let Some(AppHealth::Leaving(told)) = health.borrow_and_update().clone() else { panic!("not told") };
    let checker = tokio::spawn(checker.run(drain));
    for _ in 0..3 {
        application.accept().await.unwrap();
    }
    assert!(!health.has_changed().unwrap());
    assert!(!telling.is_finished());
    told.done();
    telling.await.unwrap();
    checker.abort();
}

#[tokio::test]
async fn application_is_not_asked_before_envoy_is_ready() {
    let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let check = HealthCheck::Tcp { host: String::new(), port: application.local_addr().unwrap().port() };
    let (published, mut health) = watch::channel(None);
    let (trigger, drain) = Trigger::new();
    // Port 1 has no admin interface.
    let config = Config::new(&probe(check), "127.0.0.1", Some((1, Limits::default())));
    let checker = tokio::spawn(Health::new(config, published).run(drain));
    tokio::select! {
        _ = application.accept() => panic!("the application was asked"),
        changed = health.changed() => changed.unwrap(),
    }
    assert!(matches!(&*health.borrow(), Some(AppHealth::Unhealthy(_))));
    trigger.start();
    checker.await.unwrap();
}

#[test]
fn defaults_are_istios() {
    let config = Config::new(&ReadinessProbe::default(), "10.0.0.5", None);
    assert_eq!((config.initial_delay, config.period), (Duration::ZERO, Duration::from_secs(10)));
    let odd = ReadinessProbe { period_seconds: -3, initial_delay_seconds: 2, ..ReadinessProbe::default() };
    let config = Config::new(&odd, "10.0.0.5", None);
    assert_eq!((config.initial_delay, config.period), (Duration::from_secs(2), Duration::from_secs(10)));
}

#[test]
fn envoy_has_as_long_as_for_the_readiness_of_the_pod() {
    let yaml = "readinessProbe: {tcpSocket: {port: 80}}";
    let env = [("PROXY_CONFIG", yaml), ("FOOTMAN_READINESS_TIMEOUT", "7s")];
    let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let (vars, _) = Vars::load(crate::config::Sources { env, root: "/nonexistent".into(), ..Default::default() });
    let config = Config::from_vars(&vars).unwrap().unwrap();
    let limits = config.envoy.unwrap().1;
    assert_eq!((limits.configured, limits.live), (Duration::from_secs(7), Duration::from_secs(7)));
}

#[test]
fn no_probe_no_checker() {
    let config = Config::from_vars(&Vars::from_pairs([("INSTANCE_IP", "10.0.0.5")]));
    assert!(config.unwrap().is_none());
}
