//! Every false claim in a token, and the cost of its detection.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::get_current_timestamp;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::testing::{AUDIENCE, Cluster, ISSUER, unsigned};
use super::*;

/// The public part of an RSA key that no longer exists.
const RSA: &str = "rHajDAcqobQKmz2ZImMTrSHstGeWvUeJq4muY7UzR3FCE3vNYCGU1WNeTEbZ6gzC5YOAsQeUQzjskyScQa5h1_cBmt3Snpxa0I5h\
     4lD5WBfgF_8e5kF4-bnwlc5-g1dlwS_KH2aPoGBkG-VEQfi3w4ZtRYrWtXisZwGnSC_rUEqwYBL-0SZdc6URnlbsX9FxmBufNc0r\
     SCUDT5Iv59Wov7mI5AKsM7YYZ0A4Noavu2Zk-Yom2TgTr2y6TF67IBAqLbnXNK9y6mZTK4sRAZV6ygrmQAtprkxYdAkzXXEsKkpF\
     SJXQ4xhs-dRxKTeo98gaSOGpuQl_WM0LVEJF2jMXXw";
/// A token for node n1 until the year 2100, signed with that key.
const RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJhdWQiOlsibG9ja3N0ZXAtaHViIl0sImV4cCI6NDEwMjQ0NDgwMCwiaXNzIjo\
     iaHR0cHM6Ly9rdWJlcm5ldGVzLmRlZmF1bHQuc3ZjIiwia3ViZXJuZXRlcy5pbyI6eyJub2RlIjp7Im5hbWUiOiJuMSJ9fSwic3V\
     iIjoic3lzdGVtOnNlcnZpY2VhY2NvdW50OmxvY2tzdGVwLXN5c3RlbTpsb2Nrc3RlcC1ub2RlLWRhZW1vbiJ9.X-n5r_kF19DqCJ\
     YfEDaHjGkYQtUjHMZDT4R5A_rjnRz3I9NgaLx0LUfPt-p86ocLjXkX-XNACFYqgl5aIXwHgI30V3sCs2SDviBFUEnBEVVFM4vNtv\
     H-_dQxuqJOitnmKUAB7E3Beoukbigztkw2ukXd0cY4Iek95Q9ho8RjIieTMibgnbfZpVBKp40QVTJg0w1ih4_77oBEQpsvJA9hso\
     4eXqBH99TzwLxDDDSnczmeWTAaUQ3JmJhJn3c2iE5I8wERzVtZt5RKB5fUYH9u1fyXJdypLnAKcTFrmQ9SvDGytOQlqWj2Juxqxh\
     xnMTFnSP8vfh9GkAK725lesdiyNQ";

/// A running authenticator.
struct Checker {
    cluster: Cluster,
    authenticator: Arc<Authenticator>,
    _work: AbortOnDropHandle<()>,
}

impl Checker {
    fn new() -> Self {
        let cluster = Cluster::new();
        let authenticator = cluster.authenticator();
        let at_work = Arc::clone(&authenticator);
        let work = tokio::spawn(async move { at_work.keep(CancellationToken::new()).await });
        Self {
            cluster,
            authenticator,
            _work: AbortOnDropHandle::new(work),
        }
    }

    async fn refusal(&self, token: &str) -> AuthError {
        self.authenticator.check(token).await.err().unwrap()
    }

    /// The refusal of a token of node n1 with another value of a claim.
    async fn refusal_of(&self, claim: &str, value: Value) -> AuthError {
        let mut claims = self.cluster.claims("n1");
        claims[claim] = value;
        self.refusal(&self.cluster.sign(&claims)).await
    }
}

#[tokio::test]
async fn the_token_says_which_node_speaks() {
    let checker = Checker::new();
    let credentials = checker.authenticator.check(&checker.cluster.token("n1")).await;
    let credentials = credentials.unwrap();
    assert_eq!(credentials.node, "n1");
    let left = credentials.expires() - Instant::now();
    assert!(
        left > Duration::from_secs(3590) && left <= Duration::from_secs(3600),
        "{left:?}"
    );
}

#[tokio::test]
async fn every_lie_is_refused_for_its_reason() {
    let checker = Checker::new();
    let now = get_current_timestamp();
    let refused = checker
        .refusal_of("aud", json!(["https://kubernetes.default.svc"]))
        .await;
    assert_eq!(
        refused,
        AuthError::Audience {
            expected: AUDIENCE.into()
        }
    );
    let refused = checker.refusal_of("aud", json!(null)).await;
    assert_eq!(
        refused,
        AuthError::Audience {
            expected: AUDIENCE.into()
        }
    );
    let refused = checker.refusal_of("iss", json!("https://elsewhere")).await;
    assert_eq!(
        refused,
        AuthError::Issuer {
            expected: ISSUER.into()
        }
    );
    let refused = checker.refusal_of("iss", json!(null)).await;
    assert_eq!(
        refused,
        AuthError::Issuer {
            expected: ISSUER.into()
        }
    );
    assert_eq!(
        checker.refusal_of("exp", json!(now - 60)).await,
        AuthError::Expired
    );
    assert_eq!(checker.refusal_of("exp", json!(null)).await, AuthError::Malformed);
    assert_eq!(
        checker.refusal_of("nbf", json!(now + 60)).await,
        AuthError::NotYetValid
    );
    assert_eq!(
        checker.refusal_of("kubernetes.io", json!({})).await,
        AuthError::NoNode
    );
    assert_eq!(
        checker
            .refusal_of("kubernetes.io", json!({"node": {"name": ""}}))
            .await,
        AuthError::NoNode
    );
    let other = "system:serviceaccount:default:lockstep-node-daemon";
    let refused = checker.refusal_of("sub", json!(other)).await;
    assert!(
        matches!(&refused, AuthError::Subject { subject, .. } if subject == other),
        "{refused:?}"
    );
    assert!(AuthError::NoNode.to_string().contains("1.32"));
}

#[tokio::test]
async fn what_is_not_signed_by_the_cluster_is_refused() {
    let checker = Checker::new();
    let claims = checker.cluster.claims("n1");
    let stranger = Cluster::new();
    assert_eq!(
        checker.refusal(&stranger.sign(&claims)).await,
        AuthError::Signature
    );
    stranger.add_key("another");
    assert_eq!(
        checker.refusal(&stranger.sign(&claims)).await,
        AuthError::UnknownKey
    );

    let mut parts: Vec<String> = checker
        .cluster
        .token("n1")
        .split('.')
        .map(str::to_owned)
        .collect();
    parts[1] = URL_SAFE_NO_PAD.encode(checker.cluster.claims("n2").to_string());
    assert_eq!(checker.refusal(&parts.join(".")).await, AuthError::Signature);

    let none = unsigned(&json!({"alg": "none", "kid": "first"}), &claims);
    assert_eq!(checker.refusal(&format!("{none}.")).await, AuthError::Malformed);
    // The public key is not a secret, and must not work as an HMAC key.
    let said = unsigned(&json!({"alg": "HS256", "kid": "first"}), &claims);
    let secret = ring::hmac::Key::new(
        ring::hmac::HMAC_SHA256,
        checker.cluster.jwks().to_string().as_bytes(),
    );
    let tag = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, said.as_bytes()));
    assert_eq!(
        checker.refusal(&format!("{said}.{tag}")).await,
        AuthError::Algorithm
    );
    // Nor may the token choose another algorithm than that of the key.
    let said = unsigned(&json!({"alg": "RS256", "kid": "first"}), &claims);
    assert_eq!(
        checker.refusal(&format!("{said}.{tag}")).await,
        AuthError::Algorithm
    );

    for nonsense in ["", "secret", "a.b.c", "..", &said] {
        assert_eq!(
            checker.refusal(nonsense).await,
            AuthError::Malformed,
            "{nonsense}"
        );
    }
    let no_key = unsigned(&json!({"alg": "ES256"}), &claims);
    assert_eq!(
        checker.refusal(&format!("{no_key}.{tag}")).await,
        AuthError::Malformed
    );
    assert_eq!(checker.refusal(&"x".repeat(1 << 20)).await, AuthError::TooLong);
}

#[test]
fn keys_of_clusters_that_sign_with_rsa_are_known() {
    signature::install();
    let jwks = json!({"keys": [
        {"use": "sig", "kty": "RSA", "kid": "rsa", "alg": "RS256", "n": RSA, "e": "AQAB"},
        {"kty": "of a later time", "kid": "x"},
    ]});
    let issuer = Issuer::parse(&json!({"issuer": ISSUER}).to_string(), &jwks.to_string()).unwrap();
    let expected = Expected::new(AUDIENCE, "lockstep-system", "lockstep-node-daemon");
    let accepted = token::check(RS256, "rsa", &issuer, &expected).unwrap();
    assert_eq!((accepted.node.as_str(), accepted.expires), ("n1", 4_102_444_800));
    let (said, signature) = RS256.rsplit_once('.').unwrap();
    let forged = format!("{said}.A{}", &signature[1..]);
    assert_eq!(
        token::check(&forged, "rsa", &issuer, &expected),
        Err(AuthError::Signature)
    );
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_reconnects_hardly_ask_the_api_server() {
    let checker = Checker::new();
    let mut streams = Vec::new();
    for node in 0..10_000 {
        let token = checker.cluster.token(&format!("n{node}"));
        streams.push(checker.authenticator.check(&token).await.unwrap());
    }
    let (readings, questions) = checker.cluster.asked();
    assert_eq!(readings, 1);
    assert!(questions <= 2, "{questions} questions while the streams came");
    // The checks run beside the stream, and never faster than this.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (_, questions) = checker.cluster.asked();
    assert!((40..=51).contains(&questions), "{questions} questions in 10 s");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_has_the_keys_be_read_again_but_not_often() {
    let checker = Checker::new();
    let first = checker.cluster.token("n1");
    checker.authenticator.check(&first).await.unwrap();
    checker.cluster.add_key("second");
    let second = checker.cluster.token("n1");
    // The keys were read just now.
    assert_eq!(checker.refusal(&second).await, AuthError::UnknownKey);
    assert_eq!(checker.cluster.asked().0, 1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    checker.authenticator.check(&second).await.unwrap();
    checker.authenticator.check(&first).await.unwrap();
    assert_eq!(checker.cluster.asked().0, 2);
    let stranger = Cluster::new();
    stranger.add_key("strange");
    let strange = stranger.token("n1");
    for _ in 0..600 {
        assert_eq!(checker.refusal(&strange).await, AuthError::UnknownKey);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (readings, _) = checker.cluster.asked();
    assert!((10..=15).contains(&readings), "{readings} readings in a minute");
}

#[tokio::test(start_paused = true)]
async fn the_last_keys_hold_while_the_api_server_is_away() {
    let checker = Checker::new();
    checker
        .authenticator
        .check(&checker.cluster.token("n1"))
        .await
        .unwrap();
    checker.cluster.go_away(true);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let credentials = checker
        .authenticator
        .check(&checker.cluster.token("n2"))
        .await
        .unwrap();
    let watched = tokio::time::timeout(Duration::from_secs(3600), credentials.revoked());
    assert!(watched.await.is_err(), "nothing says that it is revoked");
    // An unknown key may be a new one.
    checker.cluster.add_key("second");
    assert_eq!(
        checker.refusal(&checker.cluster.token("n1")).await,
        AuthError::NoKeys
    );
    checker.cluster.go_away(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    checker
        .authenticator
        .check(&checker.cluster.token("n1"))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn before_the_keys_are_known_no_token_counts_as_forged() {
    let cluster = Cluster::new();
    cluster.go_away(true);
    let authenticator = cluster.authenticator();
    let work = Arc::clone(&authenticator);
    let _work = AbortOnDropHandle::new(tokio::spawn(
        async move { work.keep(CancellationToken::new()).await },
    ));
    let refused = authenticator.check(&cluster.token("n1")).await.err().unwrap();
    assert_eq!(refused, AuthError::NoKeys);
    assert_eq!(Status::from(refused).code(), tonic::Code::Unavailable);
    cluster.go_away(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    authenticator.check(&cluster.token("n1")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_revoked_token_ends_its_streams_and_no_others() {
    let checker = Checker::new();
    let (gone, stays) = (checker.cluster.token("n1"), checker.cluster.token("n2"));
    checker.cluster.revoke(&gone);
    let first = checker.authenticator.check(&gone).await.unwrap();
    let second = checker.authenticator.check(&gone).await.unwrap();
    let other = checker.authenticator.check(&stays).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), async {
        tokio::join!(first.revoked(), second.revoked())
    })
    .await
    .unwrap();
    assert_eq!(checker.refusal(&gone).await, AuthError::Revoked);
    drop((first, second));
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert_eq!(
        checker.refusal(&gone).await,
        AuthError::Revoked,
        "it is not forgotten"
    );
    let watched = tokio::time::timeout(Duration::from_secs(1), other.revoked());
    assert!(watched.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn tokens_are_forgotten_when_their_streams_are_gone() {
    let checker = Checker::new();
    let token = checker.cluster.token("n1");
    for _ in 0..100 {
        let _stream = checker.authenticator.check(&token).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(
        checker.cluster.asked().1,
        1,
        "one token is asked about once, however often it comes"
    );
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!(checker.authenticator.reviews.len(), 0);
}

#[test]
fn any_text_is_a_token_of_the_cluster_or_refused_in_few_words() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let checker = {
        let _entered = runtime.enter();
        Checker::new()
    };
    let claims = checker.cluster.claims("n1");
    let good = checker.cluster.sign(&claims);
    let value = prop_oneof![
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            Value::Null,
            json!(1e300),
            json!([]),
            json!({}),
            json!("x".repeat(2000))
        ]),
    ];
    let claim = prop::sample::select(vec!["iss", "aud", "sub", "nbf", "exp", "kubernetes.io"]);
    let damage = (any::<prop::sample::Index>(), "[A-Za-z0-9_.-]|\\PC");
    let garbage = "[A-Za-z0-9_-]{0,40}([.][A-Za-z0-9_-]{0,40}){0,4}|\\PC{0,60}";
    let said = |token: &str| runtime.block_on(checker.authenticator.check(token));
    TestRunner::default()
        .run(
            &(claim, value, damage, garbage),
            |(claim, value, damage, garbage)| {
                let mut other = claims.clone();
                other[claim] = value;
                let at = damage.0.index(good.len());
                let damaged = format!("{}{}{}", &good[..at], damage.1, &good[at + 1..]);
                for token in [checker.cluster.sign(&other), damaged, garbage, good.repeat(20)] {
                    match said(&token) {
                        Ok(credentials) => prop_assert_eq!(credentials.node, "n1"),
                        Err(error) => {
                            prop_assert!(error.to_string().len() < 3000 && !error.reason().is_empty())
                        }
                    }
                }
                Ok(())
            },
        )
        .unwrap();
    assert_eq!(said(&good).unwrap().node, "n1");
}
