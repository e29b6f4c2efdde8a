//! Tests of callers with different permissions and tokens that share one copy.

use super::access::{ACCESS_REVIEWS, MAPS, TOKEN_REVIEWS, USER, knows_the_keys, with_account, with_the_pod};
use super::*;

const NARROW: &str = "system:serviceaccount:default:narrow";

/// Makes the cloud allow one account to read all ConfigMaps of the namespace, and another account only one of them.
fn decides(cloud: &FakeCloud, narrow: &str) {
    let narrow = narrow.to_owned();
    cloud.script(&format!("POST {TOKEN_REVIEWS}"), move |review, _| {
        let mut review = review.clone();
        let user = if review["spec"]["token"] == narrow { NARROW } else { USER };
        let user = json!({"username": user, "groups": ["system:serviceaccounts", "system:authenticated"]});
        review["status"] = json!({"authenticated": true, "user": user});
        (201, review)
    });
    cloud.script(&format!("POST {ACCESS_REVIEWS}"), |review, _| {
        let mut review = review.clone();
        let one = &review["spec"]["resourceAttributes"]["fieldSelector"]["rawSelector"];
        let allowed = review["spec"]["user"] == USER || one == "metadata.name=app";
        review["status"] = json!({"allowed": allowed, "reason": "by the rules"});
        (201, review)
    });
}

async fn maps(agent: &Agent, token: &str) -> u16 {
    agent.as_pod(token, MAPS).await.0.as_u16()
}

#[tokio::test]
async fn caller_with_a_narrower_right_does_not_affect_the_copy() {
    let (folder, cloud, issuer) = with_account();
    let [all, narrow] = [3600, 3000].map(|life| issuer.sign("k", "u3", life));
    decides(&cloud, &narrow);
    cloud.refuse(&narrow, 403);
    let agent = with_the_pod(folder.path(), &cloud).await;
    assert_eq!(maps(&agent, &all).await, 200);
    let one = format!("{MAPS}?fieldSelector=metadata.name%3Dapp");
    let (code, list) = agent.as_pod(&narrow, &one).await;
    assert_eq!((code.as_u16(), list["items"].as_array().map(Vec::len)), (200, Some(1)), "{list}");
    assert_eq!(maps(&agent, &narrow).await, 403);
    knows_the_keys(&agent, &cloud).await;

    away(&agent, &cloud).await;
    // Without any request, the copy is followed again in the name of a caller that may read it.
    cloud.set_away(false);
    wait_until("the copy to be followed again", DEADLINE, async || cloud.opened("configmaps") == 2).await;
    away(&agent, &cloud).await;
    assert_eq!(maps(&agent, &all).await, 200, "also without a cloud");
    agent.stop().await;
}

#[tokio::test]
async fn token_of_a_deleted_pod_is_replaced_by_the_next() {
    let (folder, cloud, issuer) = with_account();
    let [old, new] = [3600, 3000].map(|life| issuer.sign("k", "u3", life));
    decides(&cloud, "");
    let agent = with_the_pod(folder.path(), &cloud).await;
    assert_eq!(maps(&agent, &old).await, 200);
    assert_eq!(maps(&agent, &new).await, 200);
    assert_eq!(cloud.opened("configmaps"), 1, "one for both");
    cloud.refuse(&old, 401);
    wait_until("the other token to be taken", DEADLINE, async || {
        assert_eq!(maps(&agent, &new).await, 200);
        cloud.opened("configmaps") == 2
    })
    .await;
    agent.stop().await;
}
