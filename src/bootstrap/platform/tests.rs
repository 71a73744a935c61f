//! Detection against scripted metadata servers.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// The body of an answer that never arrives.
const LOST: &str = "lost";

/// Answers requests by path; anything else with 404. Tells in its last field what it was asked.
struct Server {
    address: String,
    asked: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Server {
    async fn start(headers: &'static str, answers: &'static [(&'static str, &'static str)]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (told, asked) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = answers.iter().find(|(known, _)| *known == path);
                if answer.is_some_and(|(_, body)| *body == LOST) {
                    held.push(stream);
                    continue;
                }
                let (status, body) = answer.map_or(("404 Not Found", ""), |(_, body)| ("200 OK", *body));
                let length = body.len();
                let reply = format!(
                    "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                let _ = stream.write_all(reply.as_bytes()).await;
                let _ = told.send(head);
            }
        });
        Server { address, asked }
    }

    fn requests(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).filter(|head| !head.is_empty()).collect()
    }
}

fn config(choice: Choice, server: &str, env: &[(&str, &str)]) -> Config {
    let vars = Vars::from_pairs(env.iter().copied().chain([("GCE_METADATA_HOST", server)]));
    let mut config = Config::from_vars(&vars).unwrap();
    config.choice = choice;
    config.servers = vec![server.to_owned()];
    config.dmi = "/nonexistent".into();
    config.gcp.resolv_conf = "/nonexistent".into();
    config
}

fn pairs(platform: &Platform) -> String {
    platform.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

const AWS: &[(&str, &str)] = &[
    ("/latest/api/token", "tok"),
    ("/latest/meta-data/iam/info", "{\"InstanceProfileArn\": \"arn:aws:iam::1:x\"}"),
    ("/latest/meta-data/placement/region", "us-west-2"),
    ("/latest/meta-data/placement/availability-zone", "us-west-2b"),
    ("/latest/meta-data/instance-id", "i-7"),
];

#[tokio::test]
async fn amazon_is_found_and_asked_with_a_token() {
    let mut server = Server::start("", AWS).await;
    let platform = detect(&config(Choice::Detect, &server.address, &[])).await;
    assert_eq!(pairs(&platform), "aws_availability_zone=us-west-2b aws_instance_id=i-7 aws_region=us-west-2");
    assert_eq!(platform.locality, ["us-west-2", "us-west-2b", ""]);
    let requests = server.requests();
    let zone = requests.iter().find(|head| head.contains("availability-zone")).unwrap().to_ascii_lowercase();
    assert!(zone.contains("x-aws-ec2-metadata-token: tok"), "{zone}");
    assert!(requests.iter().any(|head| head.starts_with("PUT /latest/api/token")));
}

#[tokio::test]
async fn amazon_without_tokens_or_answers() {
    let mut server = Server::start("", &AWS[2..3]).await;
    let platform = detect(&config(Choice::Aws, &server.address, &[])).await;
    assert_eq!(pairs(&platform), "aws_region=us-west-2");
    assert!(server.requests().iter().all(|head| !head.to_ascii_lowercase().contains("metadata-token: ")));
    let server = Server::start("", &[("/latest/meta-data/iam/info", "nothing")]).await;
    assert_eq!(detect(&config(Choice::Detect, &server.address, &[])).await, Platform::default());
}

const GOOGLE: &[(&str, &str)] = &[
    ("/", "computeMetadata/"),
    ("/computeMetadata/v1/project/project-id", "proj"),
    ("/computeMetadata/v1/project/numeric-project-id", "12"),
    ("/computeMetadata/v1/instance/zone", "projects/12/zones/us-central1-f"),
    ("/computeMetadata/v1/instance/attributes/cluster-name", "c"),
    ("/computeMetadata/v1/instance/name", "vm"),
];

#[tokio::test]
async fn google_is_found_by_its_header() {
    let server = Server::start("Metadata-Flavor: Google\r\n", GOOGLE).await;
    let platform = detect(&config(Choice::Detect, &server.address, &[])).await;
    let url = "https://container.googleapis.com/v1/projects/proj/locations/us-central1-f/clusters/c";
    assert_eq!(
        pairs(&platform),
        format!(
            "gcp_gce_instance=vm gcp_gke_cluster_name=c gcp_gke_cluster_url={url} gcp_location=us-central1-f \
             gcp_project=proj gcp_project_number=12"
        )
    );
    assert_eq!(platform.locality, ["us-central1", "us-central1-f", ""]);
}

#[tokio::test]
async fn given_metadata_is_not_asked_for() {
    let mut server = Server::start("Metadata-Flavor: Google\r\n", GOOGLE).await;
    let env = [("GCP_METADATA", "p|1|c|l"), ("GCP_ZONE", "eu-west1-b")];
    let platform = detect(&config(Choice::Gcp, &server.address, &env)).await;
    assert_eq!(platform.metadata["gcp_project"], "p");
    assert_eq!(platform.locality, ["eu-west1", "eu-west1-b", ""]);
    assert_eq!(server.requests(), Vec::<String>::new());
    let platform = detect(&config(Choice::Gcp, &server.address, &env[..1])).await;
    assert_eq!((platform.metadata.len(), platform.locality[1].as_str()), (5, "us-central1-f"));
    assert_eq!(server.requests().len(), 1, "for the zone, which is not given");
}

#[tokio::test]
async fn azure_is_asked_for_its_newest_version() {
    const AZURE: &[(&str, &str)] = &[
        ("/metadata/instance", "{\"newest-versions\": [\"2020-09-01\", \"2018-01-01\"]}"),
        (
            "/metadata/instance?api-version=2020-09-01",
            "{\"compute\": {\"location\": \"eu\", \"zone\": \"2\", \"name\": \"vm\"}}",
        ),
    ];
    let server = Server::start("", AZURE).await;
    let platform = detect(&config(Choice::Azure, &server.address, &[])).await;
    assert_eq!(pairs(&platform), "azure_location=eu azure_name=vm");
    assert_eq!(platform.locality, ["eu", "2", ""]);
    let old: &[(&str, &str)] = &[("/metadata/instance?api-version=2019-08-15", "{\"compute\": {\"name\": \"old\"}}")];
    let server = Server::start("", old).await;
    assert_eq!(pairs(&detect(&config(Choice::Azure, &server.address, &[])).await), "azure_name=old");
}

#[tokio::test]
async fn nothing_there_takes_no_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    for choice in [Choice::Detect, Choice::Aws, Choice::Azure, Choice::Nothing] {
        assert_eq!(detect(&config(choice, &address, &[])).await, Platform::default(), "{choice:?}");
    }
}

/// An address that answers nobody who connects, as long as the connections to it live.
async fn silence() -> (String, impl Sized) {
    // Once its queue is full the kernel answers no further connection.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(GRACE, tokio::net::TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
    }
    (address.to_string(), (listener, waiting))
}

#[tokio::test(start_paused = true)]
async fn a_silent_address_is_given_up() {
    let (address, _connections) = silence().await;
    let dmi = std::env::temp_dir().join(format!("footman-dmi-{}", std::process::id()));
    std::fs::create_dir_all(&dmi).unwrap();
    std::fs::write(dmi.join("sys_vendor"), "Amazon EC2\n").unwrap();
    for (choice, dmi, limit) in [
        (Choice::Detect, "/nonexistent".into(), GRACE),
        (Choice::Detect, dmi.clone(), aws::PATIENCE),
        (Choice::Aws, dmi.clone(), aws::PATIENCE),
    ] {
        let config = Config { dmi, ..config(choice, &address, &[]) };
        let before = Instant::now();
        assert_eq!(detect(&config).await, Platform::default());
        assert!(before.elapsed() <= limit + Duration::from_millis(1), "{choice:?}: {:?}", before.elapsed());
    }
    std::fs::remove_dir_all(dmi).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_address_does_not_hide_the_other_one() {
    let ((silent, _connections), live) = (silence().await, Server::start("", AWS).await);
    let mut config = config(Choice::Aws, &silent, &[]);
    config.servers.push(live.address.clone());
    assert_eq!(detect(&config).await.metadata["aws_region"], "us-west-2");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_lost_costs_little() {
    const ANSWERS: &[(&str, &str)] = &[("/latest/api/token", LOST), AWS[2]];
    let mut server = Server::start("", ANSWERS).await;
    let before = Instant::now();
    let platform = detect(&config(Choice::Aws, &server.address, &[])).await;
    assert_eq!(pairs(&platform), "aws_region=us-west-2");
    assert!(before.elapsed() <= aws::PATIENCE + Duration::from_millis(1), "{:?}", before.elapsed());
    assert!(server.requests().len() >= 3);
}

#[test]
fn choice_by_variable() {
    let of = |pairs: &[(&str, &str)]| Config::from_vars(&Vars::from_pairs(pairs.iter().copied())).unwrap().choice;
    assert_eq!(of(&[("CLOUD_PLATFORM", "NONE"), ("GCP_METADATA", "a|b|c|d")]), Choice::Nothing);
    assert_eq!(of(&[("CLOUD_PLATFORM", "aws")]), Choice::Aws);
    assert_eq!(of(&[("CLOUD_PLATFORM", "Azure")]), Choice::Azure);
    assert_eq!(of(&[("CLOUD_PLATFORM", "moon")]), Choice::Detect);
    assert_eq!(of(&[("GCP_METADATA", "a")]), Choice::Gcp);
    assert_eq!(of(&[]), Choice::Detect);
}
