(* AttncRounding.v: the rounding error of an executed softmax head.

   docs/coq_rounding.md explains the model and the theorem; docs/arithmetic.md states the assumptions in prose. *)
From Coq Require Import Reals List Permutation Lra Psatz Lia.
Import ListNotations.
Open Scope R_scope.

(** Sums over lists *)

Fixpoint sum {A : Type} (f : A -> R) (l : list A) : R :=
  match l with [] => 0 | x :: m => f x + sum f m end.

Section Sums.
Context {A : Type}.
Implicit Types (f g : A -> R) (l m : list A).

Lemma sum_app : forall f l m, sum f (l ++ m) = sum f l + sum f m.
Proof. intros f l m; induction l as [|x l IH]; simpl; [ring|rewrite IH; ring]. Qed.

Lemma sum_permutation : forall f l m, Permutation l m -> sum f l = sum f m.
Proof. intros f l m P; induction P; simpl; lra. Qed.

Lemma sum_add : forall f g l, sum (fun x => f x + g x) l = sum f l + sum g l.
Proof. intros f g l; induction l as [|x l IH]; simpl; [ring|rewrite IH; ring]. Qed.

Lemma sum_scale : forall c f l, sum (fun x => c * f x) l = c * sum f l.
Proof. intros c f l; induction l as [|x l IH]; simpl; [ring|rewrite IH; ring]. Qed.

Lemma sum_ext : forall f g l, (forall x, In x l -> f x = g x) -> sum f l = sum g l.
Proof.
  intros f g l; induction l as [|x l IH]; intros H; simpl; [reflexivity|].
  rewrite (H x) by (left; reflexivity); rewrite IH; [reflexivity|intros y Y; apply H; right; exact Y].
Qed.

Lemma sum_le : forall f g l, (forall x, In x l -> f x <= g x) -> sum f l <= sum g l.
Proof.
  intros f g l; induction l as [|x l IH]; intros H; simpl; [lra|].
  apply Rplus_le_compat; [apply H; left; reflexivity|apply IH; intros y Y; apply H; right; exact Y].
Qed.

Lemma sum_nonneg : forall f l, (forall x, In x l -> 0 <= f x) -> 0 <= sum f l.
Proof.
  intros f l; induction l as [|x l IH]; intros H; simpl; [lra|].
  apply Rplus_le_le_0_compat; [apply H; left; reflexivity|apply IH; intros y Y; apply H; right; exact Y].
Qed.

Lemma sum_one_le : forall f l x, (forall y, In y l -> 0 <= f y) -> In x l -> f x <= sum f l.
Proof.
  intros f l; induction l as [|a l IH]; intros x H X; simpl; [destruct X|].
  assert (0 <= sum f l) by (apply sum_nonneg; intros y Y; apply H; right; exact Y).
  destruct X as [X|X]; [subst; lra|].
  assert (f x <= sum f l) by (apply IH; [intros y Y; apply H; right; exact Y|exact X]).
  assert (0 <= f a) by (apply H; left; reflexivity); lra.
Qed.

Lemma sum_Rabs : forall f l, Rabs (sum f l) <= sum (fun x => Rabs (f x)) l.
Proof.
  intros f l; induction l as [|x l IH]; simpl; [rewrite Rabs_R0; lra|].
  apply Rle_trans with (1 := Rabs_triang _ _); lra.
Qed.

Lemma sum_const : forall c l, sum (fun _ => c) l = INR (length l) * c.
Proof.
  intros c l; induction l as [|x l IH]; [simpl; ring|].
  change (sum (fun _ => c) (x :: l)) with (c + sum (fun _ : A => c) l).
  change (length (x :: l)) with (S (length l)); rewrite S_INR, IH; ring.
Qed.
End Sums.

Lemma sum_map : forall (A B : Type) (h : A -> B) f l, sum f (map h l) = sum (fun x => f (h x)) l.
Proof. intros A B h f l; induction l as [|x l IH]; simpl; [reflexivity|rewrite IH; reflexivity]. Qed.

(** The machine *)

Section Machine.

Variable u : R.    (* unit roundoff *)
Variable tau : R.  (* smallest normal number *)
Variable E : R.    (* relative error of softmax's exp *)

(* Assumption 1: y is what the machine returns for the exact result t. *)
Definition rounds (t y : R) := exists d e, Rabs d <= u /\ Rabs e <= tau /\ y = t * (1 + d) + e.

(* A subnormal operand may be taken for zero. *)
Definition reads (y y' : R) := y' = y \/ (Rabs y < tau /\ y' = 0).

(* Multiplying by 0 or a power of two and adding 0 round nothing except what underflows. *)
Definition scales (k : R) := k = 0 \/ exists n : Z, Rabs k = powerRZ 2 n.
Definition product (k x y : R) := rounds (k * x) y /\ (scales k -> Rabs (y - k * x) <= tau).
Definition addition (a c y : R) := rounds (a + c) y /\ (c = 0 -> Rabs (y - a) <= tau).
Definition fused (k x c y : R) := rounds (k * x + c) y /\ (scales k -> c = 0 -> Rabs (y - k * x) <= tau).

(* y = fl(k x + c) for stored k and c: two operations or one *)
Definition affine (k c x y : R) :=
  exists x', reads x x' /\
    (fused k x' c y \/ exists p p', product k x' p /\ reads p p' /\ addition p' c y).

(* Assumption 2: exp and the division of softmax *)
Definition exponential (d e : R) :=
  exists d' eps t, reads d d' /\ Rabs eps <= E /\ Rabs t <= 4 * tau /\ e = exp d' * (1 + eps) + t.

Definition weight (total e w : R) :=
  exists e' t', reads e e' /\ reads total t' /\
    (rounds (e' / t') w \/
     exists r1 r r', rounds (1 / t') r1 /\ rounds r1 r /\ reads r r' /\ rounds (e' * r') w).

(* Assumption 3: a sum in any order, each partial sum rounded once *)
Inductive total : list R -> R -> Prop :=
| total_one : forall x, total [x] x
| total_add : forall l m n a a' b b' y,
    total l a -> total m b -> Permutation (l ++ m) n ->
    reads a a' -> reads b b' -> rounds (a' + b') y -> total n y.

(** One head *)

(* The score of a key is slope x + intercept, its value own s + constant. The flags say that slope is 0 or a power of two, and
   that intercept is 0 (`sound`). *)
Record key := Key {
  slope : R; intercept : R; own : R; constant : R; scaling : bool; bare : bool }.

Definition sound (k : key) :=
  (scaling k = true -> scales (slope k)) /\ (bare k = true -> intercept k = 0).

Definition score (x : R) (k : key) := slope k * x + intercept k.
Definition value (s : R) (k : key) := own k * s + constant k.

(* In exact arithmetic, with the query gain s + offset *)
Definition exact_head (gain offset : R) (keys : list key) (s : R) :=
  sum (fun k => exp (score (gain * s + offset) k) * value s k) keys
  / sum (fun k => exp (score (gain * s + offset) k)) keys.

(* What is executed for one key: score, distance from the largest score, exponential, weight, value, weight times value *)
Record run := Run {
  of : key; z : R; d : R; e : R; w : R; v : R; t : R }.

(* gated: some key of the head has own <> 0, and all values are computed from s *)
Definition runs_key (gated : bool) (s x largest denominator : R) (r : run) :=
  affine (slope (of r)) (intercept (of r)) x (z r) /\
  (exists z' m', reads (z r) z' /\ reads largest m' /\ rounds (z' - m') (d r)) /\
  exponential (d r) (e r) /\
  weight denominator (e r) (w r) /\
  (if gated then affine (own (of r)) (constant (of r)) s (v r) else v r = constant (of r)) /\
  exists w' v', reads (w r) w' /\ (if gated then reads (v r) v' else v' = v r) /\ rounds (w' * v') (t r).

Definition runs_head (gated : bool) (gain offset : R) (keys : list key) (s y : R) :=
  exists x largest denominator (l : list run),
    map of l = keys /\
    affine gain offset s x /\
    In largest (map z l) /\ (forall r, In r l -> z r <= largest) /\
    (forall r, In r l -> runs_key gated s x largest denominator r) /\
    total (map e l) denominator /\
    total (map t l) y.

(** Errors of single operations *)

Hypothesis u_small : 0 <= u <= / 1000.
Hypothesis tau_small : 0 <= tau <= / 1000.
Hypothesis E_small : 0 <= E <= / 1000.

Lemma rounds_near : forall a y T err, rounds a y -> Rabs (a - T) <= err ->
  Rabs (y - T) <= err + u * (Rabs T + err) + tau.
Proof.
  intros a y T err (dl & et & Hd & He & ->) H.
  replace (a * (1 + dl) + et - T) with ((a - T) + dl * (T + (a - T)) + et) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat; [|exact He].
  apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat; [exact H|].
  rewrite Rabs_mult; apply Rmult_le_compat; try apply Rabs_pos; [exact Hd|].
  apply Rle_trans with (1 := Rabs_triang _ _); lra.
Qed.

Lemma reads_near : forall y y', reads y y' -> Rabs (y' - y) <= tau.
Proof.
  intros y y' [->|[H ->]]; [rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; lra|].
  rewrite Rminus_0_l, Rabs_Ropp; lra.
Qed.

Lemma near_trans : forall a b c p q, Rabs (a - b) <= p -> Rabs (b - c) <= q -> Rabs (a - c) <= q + p.
Proof.
  intros a b c p q P Q; replace (a - c) with ((b - c) + (a - b)) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _); lra.
Qed.

Definition unit_of (flag : bool) := if flag then 0 else u.

(* |y - Z| for y = fl(k x + c), |x - X| <= err, Z = k X + c *)
Definition affine_error (scaling bare : bool) (k X Z err : R) :=
  let enter := Rabs k * (err + tau) in
  let after := enter + unit_of scaling * (Rabs (k * X) + enter) + 2 * tau in
  after + unit_of bare * (Rabs Z + after) + tau.

Lemma affine_near : forall sc br k c x y X err,
  (sc = true -> scales k) -> (br = true -> c = 0) ->
  affine k c x y -> Rabs (x - X) <= err ->
  Rabs (y - (k * X + c)) <= affine_error sc br k X (k * X + c) err.
Proof.
  intros sc br k c x y X err Sc Br (x' & Hx' & H) Hx.
  assert (Hx2 : Rabs (x' - X) <= err + tau) by (apply near_trans with x; [apply reads_near, Hx'|exact Hx]).
  assert (Hk : Rabs (k * x' - k * X) <= Rabs k * (err + tau)).
  { rewrite <- Rmult_minus_distr_l, Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|exact Hx2]. }
  unfold affine_error; cbv zeta; set (enter := Rabs k * (err + tau)) in *.
  assert (0 <= enter) by (apply Rle_trans with (2 := Hk), Rabs_pos).
  assert (0 <= Rabs (k * X)) by apply Rabs_pos.
  assert (0 <= Rabs (k * X + c)) by apply Rabs_pos.
  assert (U1 : 0 <= unit_of sc * (Rabs (k * X) + enter)) by (destruct sc; unfold unit_of; nra).
  set (after := enter + unit_of sc * (Rabs (k * X) + enter) + 2 * tau).
  assert (0 <= after) by (unfold after; lra).
  assert (U2 : 0 <= unit_of br * (Rabs (k * X + c) + after)) by (destruct br; unfold unit_of; nra).
  destruct H as [[F1 F2]|(p & p' & [P1 P2] & Hp' & [A1 A2])].
  - destruct br; [destruct sc|].
    + specialize (F2 (Sc eq_refl) (Br eq_refl)); assert (C := Br eq_refl); subst c; rewrite Rplus_0_r in *.
      assert (Hn := near_trans _ _ _ _ _ F2 Hk); unfold after in *; lra.
    + assert (C := Br eq_refl); subst c; rewrite Rplus_0_r in *.
      assert (Hn := rounds_near _ _ _ _ F1 Hk); unfold after, unit_of in *; lra.
    + assert (Hc : Rabs (k * x' + c - (k * X + c)) <= enter)
        by (replace (k * x' + c - (k * X + c)) with (k * x' - k * X) by ring; exact Hk).
      assert (Hn := rounds_near _ _ _ _ F1 Hc).
      assert (enter <= after) by (unfold after; lra).
      assert (u * (Rabs (k * X + c) + enter) <= u * (Rabs (k * X + c) + after)) by (apply Rmult_le_compat_l; lra).
      unfold unit_of in *; lra.
  - assert (Hp : Rabs (p - k * X) <= enter + unit_of sc * (Rabs (k * X) + enter) + tau).
    { destruct sc.
      - assert (Hn := near_trans _ _ _ _ _ (P2 (Sc eq_refl)) Hk); unfold unit_of; lra.
      - exact (rounds_near _ _ _ _ P1 Hk). }
    assert (Hq : Rabs (p' - k * X) <= after).
    { assert (Hn := near_trans _ _ _ _ _ (reads_near _ _ Hp') Hp); unfold after; lra. }
    destruct br.
    + specialize (A2 (Br eq_refl)); assert (C := Br eq_refl); subst c; rewrite Rplus_0_r in *.
      assert (Hn := near_trans _ _ _ _ _ A2 Hq); lra.
    + assert (Hc : Rabs (p' + c - (k * X + c)) <= after)
        by (replace (p' + c - (k * X + c)) with (p' - k * X) by ring; exact Hq).
      exact (rounds_near _ _ _ _ A1 Hc).
Qed.

(** Chains of roundings: y is within (G - 1) m + a of T, and |T| <= m *)

Definition near (T m G a y : R) := Rabs T <= m /\ Rabs (y - T) <= (G - 1) * m + a.

Lemma near_exact : forall T, near T (Rabs T) 1 0 T.
Proof. intros T; split; [lra|rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; lra]. Qed.

Lemma near_weaken : forall T m G a y m' G' a', near T m G a y -> 1 <= G -> m <= m' -> G <= G' -> a <= a' ->
  near T m' G' a' y.
Proof.
  intros T m G a y m' G' a' [H1 H2] HG Hm HG' Ha; assert (0 <= Rabs T) by apply Rabs_pos; split; [lra|nra].
Qed.

Lemma near_size : forall T m G a y, near T m G a y -> Rabs y <= G * m + a.
Proof.
  intros T m G a y [H1 H2]; replace y with (T + (y - T)) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _); lra.
Qed.

Lemma near_reads : forall T m G a y y', near T m G a y -> reads y y' -> near T m G (a + tau) y'.
Proof.
  intros T m G a y y' [H1 H2] H; split; [exact H1|].
  assert (Hn := near_trans _ _ _ _ _ (reads_near _ _ H) H2); lra.
Qed.

Lemma near_rounds : forall T m G a y y', near T m G a y -> rounds y y' ->
  near T m (G * (1 + u)) (a * (1 + u) + tau) y'.
Proof.
  intros T m G a y y' [H1 H2] H; split; [exact H1|].
  assert (Hn := rounds_near _ _ _ _ H H2).
  apply Rle_trans with (1 := Hn).
  assert (u * Rabs T <= u * m) by (apply Rmult_le_compat_l; lra).
  nra.
Qed.

Lemma near_mult : forall T m G a y T' m' G' a' y', near T m G a y -> near T' m' G' a' y' ->
  1 <= G -> 1 <= G' -> 0 <= a -> 0 <= a' ->
  near (T * T') (m * m') (G * G') (a * (G' * m' + a') + G * m * a') (y * y').
Proof.
  intros T m G a y T' m' G' a' y' N N' HG HG' Ha Ha'; assert (S' := near_size _ _ _ _ _ N').
  destruct N as [H1 H2], N' as [H1' H2'].
  assert (0 <= Rabs T) by apply Rabs_pos; assert (0 <= Rabs T') by apply Rabs_pos.
  split; [rewrite Rabs_mult; apply Rmult_le_compat; auto using Rabs_pos|].
  replace (y * y' - T * T') with ((y - T) * y' + T * (y' - T')) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _); rewrite !Rabs_mult.
  assert (Rabs (y - T) * Rabs y' <= ((G - 1) * m + a) * (G' * m' + a'))
    by (apply Rmult_le_compat; auto using Rabs_pos).
  assert (Rabs T * Rabs (y' - T') <= m * ((G' - 1) * m' + a')) by (apply Rmult_le_compat; auto using Rabs_pos).
  assert (0 <= a' * ((G - 1) * m)) by (apply Rmult_le_pos; [lra|apply Rmult_le_pos; lra]).
  apply Rle_trans with (((G - 1) * m + a) * (G' * m' + a') + m * ((G' - 1) * m' + a')); [lra|].
  apply Req_le; ring.
Qed.

(** A sum in any order *)

Lemma G_ge_1 : forall n, 1 <= (1 + u) ^ n.
Proof. intros n; apply pow_R1_Rle; lra. Qed.

Lemma G_mono : forall n m, (n <= m)%nat -> (1 + u) ^ n <= (1 + u) ^ m.
Proof. intros n m H; apply Rle_pow; [lra|exact H]. Qed.

Lemma total_length : forall l y, total l y -> (1 <= length l)%nat.
Proof.
  intros l y H; induction H as [x|l m n a a' b b' y Hl IHl Hm IHm P]; [simpl; lia|].
  rewrite <- (Permutation_length P), app_length; lia.
Qed.

Lemma total_near : forall l y, total l y ->
  Rabs (y - sum (fun x => x) l) <=
  ((1 + u) ^ (length l - 1) - 1) * sum Rabs l + 3 * tau * INR (length l - 1) * (1 + u) ^ (length l - 1).
Proof.
  intros l y H; induction H as [x|l m n a a' b b' y Hl IHl Hm IHm P Ra Rb Ry].
  - simpl; replace (x - (x + 0)) with 0 by ring; rewrite Rabs_R0; lra.
  - rewrite <- !(sum_permutation _ _ _ P), <- (Permutation_length P), !sum_app, app_length.
    assert (Ll := total_length _ _ Hl); assert (Lm := total_length _ _ Hm).
    replace (length l + length m - 1)%nat with (S (length l - 1 + (length m - 1)))%nat by lia.
    set (i := (length l - 1)%nat) in *; set (j := (length m - 1)%nat) in *.
    set (A := sum (fun x => x) l) in *; set (B := sum (fun x => x) m) in *.
    assert (HA : Rabs A <= sum Rabs l) by apply (sum_Rabs (fun x => x)).
    assert (HB : Rabs B <= sum Rabs m) by apply (sum_Rabs (fun x => x)).
    set (A1 := sum Rabs l) in *; set (B1 := sum Rabs m) in *.
    assert (0 <= A1) by (apply Rle_trans with (2 := HA), Rabs_pos).
    assert (0 <= B1) by (apply Rle_trans with (2 := HB), Rabs_pos).
    assert (Gi := G_mono i (i + j) ltac:(lia)); assert (Gj := G_mono j (i + j) ltac:(lia)).
    assert (Gi1 := G_ge_1 i); assert (Gj1 := G_ge_1 j); assert (Gij := G_ge_1 (i + j)).
    assert (Ni := pos_INR i); assert (Nj := pos_INR j).
    rewrite S_INR, plus_INR; simpl pow.
    set (g := (1 + u) ^ (i + j)) in *.
    assert (Ha : Rabs (a' - A) <= (g - 1) * A1 + 3 * tau * INR i * g + tau).
    { assert (Hn := near_trans _ _ _ _ _ (reads_near _ _ Ra) IHl).
      assert (((1 + u) ^ i - 1) * A1 <= (g - 1) * A1) by (apply Rmult_le_compat_r; lra).
      assert (3 * tau * INR i * (1 + u) ^ i <= 3 * tau * INR i * g)
        by (apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|lra]). lra. }
    assert (Hb : Rabs (b' - B) <= (g - 1) * B1 + 3 * tau * INR j * g + tau).
    { assert (Hn := near_trans _ _ _ _ _ (reads_near _ _ Rb) IHm).
      assert (((1 + u) ^ j - 1) * B1 <= (g - 1) * B1) by (apply Rmult_le_compat_r; lra).
      assert (3 * tau * INR j * (1 + u) ^ j <= 3 * tau * INR j * g)
        by (apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|lra]). lra. }
    assert (Hs : Rabs (a' + b' - (A + B)) <= (g - 1) * (A1 + B1) + 3 * tau * (INR i + INR j) * g + 2 * tau).
    { replace (a' + b' - (A + B)) with ((a' - A) + (b' - B)) by ring.
      apply Rle_trans with (1 := Rabs_triang _ _); lra. }
    assert (Hn := rounds_near _ _ _ _ Ry Hs).
    assert (Rabs (A + B) <= A1 + B1) by (apply Rle_trans with (1 := Rabs_triang _ _); lra).
    assert (u * Rabs (A + B) <= u * (A1 + B1)) by (apply Rmult_le_compat_l; lra).
    assert (T2 : tau * (1 + u) <= tau * ((1 + u) * g))
      by (apply Rmult_le_compat_l; [lra|rewrite <- (Rmult_1_r (1 + u)) at 1; apply Rmult_le_compat_l; lra]).
    assert (T3 : tau <= tau * (1 + u))
      by (rewrite <- (Rmult_1_r tau) at 1; apply Rmult_le_compat_l; lra).
    apply Rle_trans with (1 := Hn).
    apply Rle_trans with ((1 + u) * ((g - 1) * (A1 + B1) + 3 * tau * (INR i + INR j) * g + 2 * tau)
                          + u * (A1 + B1) + tau); [lra|].
    apply Rle_trans with (((1 + u) * g - 1) * (A1 + B1) + 3 * tau * (INR i + INR j) * ((1 + u) * g)
                          + 3 * (tau * ((1 + u) * g))); [lra|apply Req_le; ring].
Qed.

Lemma near_total : forall (A : Type) (T m a f : A -> R) G l y, 1 <= G ->
  (forall x, In x l -> near (T x) (m x) G (a x) (f x)) -> total (map f l) y ->
  near (sum T l) (sum m l) (G * (1 + u) ^ (length l - 1))
    ((1 + u) ^ (length l - 1) * (sum a l + 3 * tau * INR (length l - 1))) y.
Proof.
  intros A T m a f G l y HG N H; assert (Hn := total_near _ _ H); clear H.
  rewrite map_length, !sum_map in Hn; simpl in Hn.
  assert (HP := G_ge_1 (length l - 1)); set (P := (1 + u) ^ (length l - 1)) in *; clearbody P.
  set (q := INR (length l - 1)) in *; clearbody q.
  split.
  - apply Rle_trans with (1 := sum_Rabs _ _), sum_le; intros x X; apply (N x X).
  - assert (H1 : Rabs (sum f l - sum T l) <= sum (fun x => (G - 1) * m x + a x) l).
    { replace (sum f l - sum T l) with (sum (fun x => f x + -1 * T x) l)
        by (rewrite (sum_add f (fun x => -1 * T x)), sum_scale; ring).
      apply Rle_trans with (1 := sum_Rabs _ _), sum_le; intros x X.
      replace (f x + -1 * T x) with (f x - T x) by ring; apply (N x X). }
    assert (H2 : sum (fun x => Rabs (f x)) l <= sum (fun x => G * m x + a x) l)
      by (apply sum_le; intros x X; apply (near_size _ _ _ _ _ (N x X))).
    rewrite (sum_add (fun x => (G - 1) * m x) a), sum_scale in H1.
    rewrite (sum_add (fun x => G * m x) a), sum_scale in H2.
    assert (H3 := near_trans _ _ _ _ _ Hn H1).
    assert ((P - 1) * sum (fun x => Rabs (f x)) l <= (P - 1) * (G * sum m l + sum a l))
      by (apply Rmult_le_compat_l; lra).
    apply Rle_trans with (1 := H3).
    apply Rle_trans with ((G - 1) * sum m l + sum a l + ((P - 1) * (G * sum m l + sum a l) + 3 * tau * q * P)); [lra|].
    apply Req_le; ring.
Qed.

Lemma Rabs_le_inv : forall a b, Rabs a <= b -> - b <= a <= b.
Proof. intros a b H; unfold Rabs in H; destruct (Rcase_abs a); lra. Qed.

(** The perturbation of a weighted average *)

Lemma average_moves : forall (A : Type) (l : list A) (W a off vs : A -> R),
  sum W l = 1 -> (forall k, In k l -> Rabs (a k - W k) <= off k) -> sum off l < 1 ->
  let g := sum (fun k => W k * vs k) l in
  1 - sum off l <= sum a l /\
  Rabs (sum (fun k => a k * vs k) l / sum a l - g)
    <= sum (fun k => off k * Rabs (vs k - g)) l / (1 - sum off l).
Proof.
  intros A l W a off vs H1 Ha Ho g.
  assert (L : 1 - sum off l <= sum a l).
  { rewrite <- H1; replace (sum W l - sum off l) with (sum (fun k => W k + -1 * off k) l)
      by (rewrite (sum_add W (fun k => -1 * off k)), sum_scale; ring).
    apply sum_le; intros k K; generalize (Ha k K); intros B; apply Rabs_le_inv in B; lra. }
  split; [exact L|].
  assert (Eq : sum (fun k => a k * vs k) l / sum a l - g = sum (fun k => (a k - W k) * (vs k - g)) l / sum a l).
  { replace (sum (fun k => (a k - W k) * (vs k - g)) l)
      with (sum (fun k => (a k * vs k + -1 * (W k * vs k)) + (-g * a k + g * W k)) l)
      by (apply sum_ext; intros; ring).
    rewrite (sum_add (fun k => a k * vs k + -1 * (W k * vs k)) (fun k => -g * a k + g * W k)).
    rewrite (sum_add (fun k => a k * vs k) (fun k => -1 * (W k * vs k))), (sum_add (fun k => -g * a k) (fun k => g * W k)).
    rewrite !sum_scale, H1; fold g; field; lra. }
  rewrite Eq; unfold Rdiv; rewrite Rabs_mult, (Rabs_pos_eq (/ sum a l)) by (left; apply Rinv_0_lt_compat; lra).
  apply Rmult_le_compat; [apply Rabs_pos|left; apply Rinv_0_lt_compat; lra| |apply Rinv_le_contravar; lra].
  apply Rle_trans with (1 := sum_Rabs _ _), sum_le; intros k K.
  rewrite Rabs_mult; apply Rmult_le_compat_r; [apply Rabs_pos|apply Ha, K].
Qed.

Lemma average_mass : forall (A : Type) (l : list A) (W a off m : A -> R),
  sum W l = 1 -> (forall k, In k l -> 0 <= W k) -> (forall k, In k l -> 0 <= m k) ->
  (forall k, In k l -> Rabs (a k - W k) <= off k) -> sum off l < 1 -> 1 - sum off l <= sum a l ->
  sum (fun k => Rabs (a k) * m k) l / sum a l <= sum (fun k => (W k + off k) * m k) l / (1 - sum off l).
Proof.
  intros A l W a off m H1 HW Hm Ha Ho L; unfold Rdiv.
  assert (B : forall k, In k l -> Rabs (a k) <= W k + off k).
  { intros k K; replace (a k) with (W k + (a k - W k)) by ring.
    apply Rle_trans with (1 := Rabs_triang _ _); rewrite (Rabs_pos_eq (W k)) by (apply HW, K).
    generalize (Ha k K); lra. }
  apply Rmult_le_compat; [|left; apply Rinv_0_lt_compat; lra| |apply Rinv_le_contravar; lra].
  - apply sum_nonneg; intros k K; apply Rmult_le_pos; [apply Rabs_pos|apply Hm, K].
  - apply sum_le; intros k K; apply Rmult_le_compat_r; [apply Hm, K|apply B, K].
Qed.

(** The executed exponentials *)

Lemma exp_le : forall a b, a <= b -> exp a <= exp b.
Proof. intros a b [H|H]; [left; apply exp_increasing, H|right; rewrite H; reflexivity]. Qed.

Lemma exp_moves : forall a b c eps, Rabs (a - b) <= c -> Rabs eps <= E ->
  Rabs (exp a * (1 + eps) - exp b) <= exp b * (exp c * (1 + E) - 1).
Proof.
  intros a b c eps H He; assert (0 <= c) by (apply Rle_trans with (2 := H), Rabs_pos).
  apply Rabs_le_inv in H; apply Rabs_le_inv in He.
  replace a with (b + (a - b)) by ring; rewrite exp_plus; set (h := a - b) in *.
  replace (exp b * exp h * (1 + eps) - exp b) with (exp b * (exp h * (1 + eps) - 1)) by ring.
  rewrite Rabs_mult, (Rabs_pos_eq (exp b)) by (left; apply exp_pos).
  apply Rmult_le_compat_l; [left; apply exp_pos|].
  assert (U : exp h <= exp c) by (apply exp_le; lra).
  assert (L : exp (- c) <= exp h) by (apply exp_le; lra).
  assert (1 + c <= exp c) by apply exp_ineq1_le.
  assert (1 + - c <= exp (- c)) by apply exp_ineq1_le.
  assert (0 < exp h) by apply exp_pos; assert (0 < exp (- c)) by apply exp_pos.
  assert (exp h * (1 + eps) <= exp c * (1 + E)) by (apply Rmult_le_compat; lra).
  assert (exp (- c) * (1 - E) <= exp h * (1 + eps)) by (apply Rmult_le_compat; lra).
  assert ((1 + - c) * (1 - E) <= exp (- c) * (1 - E)) by (apply Rmult_le_compat_r; lra).
  assert ((1 + c) * (1 + E) <= exp c * (1 + E)) by (apply Rmult_le_compat_r; lra).
  assert (0 <= c * E) by (apply Rmult_le_pos; lra).
  apply Rabs_le; split; lra.
Qed.

(** The bound *)

Section Head.

Variables (gated scaling_query bare_query : bool) (gain offset : R) (keys : list key) (s : R).
Variables (ref : key) (top : R).

Definition query := gain * s + offset.
Definition query_error := affine_error scaling_query bare_query gain s query 0.
Definition score_error (k : key) :=
  affine_error (scaling k) (bare k) (slope k) query (score query k) query_error.
Definition lead (k : key) := (slope k - slope ref) * query + (intercept k - intercept ref).
Definition shift (k : key) :=
  score_error k + u * (Rabs (lead k) + score_error k + top + 2 * tau) + 4 * tau.
Definition theta (k : key) := exp (shift k) * (1 + E) - 1.
Definition mass := sum (fun k => exp (lead k)) keys.
Definition share (k : key) := exp (lead k) / mass.
Definition off (k : key) := share k * theta k + 4 * tau * exp top.
Definition output := sum (fun k => share k * value s k) keys.
Definition size (k : key) := Rabs (own k * s) + Rabs (constant k).
Definition roundings := (length keys + 3 + if gated then 2 else 0)%nat.
Definition factor := (1 + u) ^ roundings / (1 - INR (length keys) * u) - 1.
Definition remaining := 1 - sum off keys.

Definition rounding_bound :=
  sum (fun k => off k * Rabs (value s k - output)) keys / remaining
  + factor * (sum (fun k => (share k + off k) * size k) keys / remaining)
  + 400 * tau * sum (fun k => size k + Rabs (own k) + 1) keys.

(* p is not too large for the dtype *)
Definition sums_ok (p : nat) :=
  ((1 + u) ^ (p - 1) - 1) * (1 + 48 * tau * INR p) + 24 * tau * INR p * (1 + u) ^ (p - 1) + 6 * tau
    <= INR p * u <= / 4.

Hypothesis query_sound : (scaling_query = true -> scales gain) /\ (bare_query = true -> offset = 0).
Hypothesis keys_sound : forall k, In k keys -> sound k.
Hypothesis ref_in : In ref keys.
Hypothesis below_top : forall k, In k keys -> score_error k <= top /\ lead k + score_error k <= top.
Hypothesis top_small : top <= 1.
Hypothesis off_small : sum off keys <= / 2.
Hypothesis few : sums_ok (length keys).
Hypothesis not_gated : gated = false -> forall k, In k keys -> own k = 0.

Lemma affine_error_pos : forall sc br k X Z err, 0 <= err -> tau <= affine_error sc br k X Z err.
Proof.
  intros sc br k X Z err H; unfold affine_error; cbv zeta.
  assert (0 <= Rabs k * (err + tau)) by (apply Rmult_le_pos; [apply Rabs_pos|lra]).
  set (enter := Rabs k * (err + tau)) in *; clearbody enter.
  assert (0 <= unit_of sc * (Rabs (k * X) + enter))
    by (apply Rmult_le_pos; [destruct sc; unfold unit_of; lra|generalize (Rabs_pos (k * X)); lra]).
  set (after := enter + _ + _) in *.
  assert (0 <= after) by (unfold after; lra).
  assert (0 <= unit_of br * (Rabs Z + after))
    by (apply Rmult_le_pos; [destruct br; unfold unit_of; lra|generalize (Rabs_pos Z); lra]).
  lra.
Qed.

Lemma query_error_pos : 0 <= query_error.
Proof. generalize (affine_error_pos scaling_query bare_query gain s query 0 (Rle_refl 0)); unfold query_error; lra. Qed.

Lemma score_error_pos : forall k, 0 <= score_error k.
Proof.
  intros k; generalize (affine_error_pos (scaling k) (bare k) (slope k) query (score query k) _ query_error_pos).
  unfold score_error; lra.
Qed.

Lemma lead_score : forall k, lead k = score query k - score query ref.
Proof. intros k; unfold lead, score; ring. Qed.

Lemma mass_ge_1 : 1 <= mass.
Proof.
  unfold mass; replace 1 with (exp (lead ref)).
  - apply (sum_one_le (fun k => exp (lead k))); [intros; left; apply exp_pos|exact ref_in].
  - rewrite <- exp_0; f_equal; unfold lead; ring.
Qed.

Lemma share_pos : forall k, 0 <= share k.
Proof.
  intros k; assert (M := mass_ge_1); apply Rmult_le_pos; [left; apply exp_pos|left; apply Rinv_0_lt_compat; lra].
Qed.

Lemma share_sum : sum share keys = 1.
Proof.
  assert (M := mass_ge_1); unfold share, Rdiv.
  rewrite (sum_ext _ (fun k => / mass * exp (lead k))) by (intros; ring).
  rewrite sum_scale; fold mass; field; lra.
Qed.

Lemma output_exact : output = exact_head gain offset keys s.
Proof.
  assert (M := mass_ge_1); unfold output, exact_head, share; fold query.
  assert (P := exp_pos (score query ref)).
  assert (Eq : forall k, exp (score query k) = exp (score query ref) * exp (lead k))
    by (intros k; rewrite <- exp_plus, lead_score; f_equal; ring).
  rewrite (sum_ext (fun k => exp (score query k)) (fun k => exp (score query ref) * exp (lead k))) by (intros; apply Eq).
  rewrite (sum_ext (fun k => exp (score query k) * value s k)
             (fun k => exp (score query ref) * (exp (lead k) * value s k))) by (intros k _; rewrite Eq; ring).
  rewrite !sum_scale; fold mass.
  rewrite (sum_ext _ (fun k => / mass * (exp (lead k) * value s k))) by (intros; field; lra).
  rewrite sum_scale; field; lra.
Qed.

Section Execution.

Variables (x largest denominator y : R) (l : list run).
Hypothesis l_keys : map of l = keys.
Hypothesis x_runs : affine gain offset s x.
Hypothesis largest_in : In largest (map z l).
Hypothesis largest_most : forall r, In r l -> z r <= largest.
Hypothesis l_runs : forall r, In r l -> runs_key gated s x largest denominator r.
Hypothesis denominator_runs : total (map e l) denominator.
Hypothesis y_runs : total (map t l) y.

Lemma key_in : forall r, In r l -> In (of r) keys.
Proof. intros r H; rewrite <- l_keys; apply in_map, H. Qed.

Lemma over_runs : forall f : key -> R, sum f keys = sum (fun r => f (of r)) l.
Proof. intros f; rewrite <- l_keys; apply sum_map. Qed.

Lemma query_near : Rabs (x - query) <= query_error.
Proof.
  apply (affine_near scaling_query bare_query gain offset s x s 0); try apply query_sound; [exact x_runs|].
  rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; lra.
Qed.

Lemma score_near : forall r, In r l -> Rabs (z r - score query (of r)) <= score_error (of r).
Proof.
  intros r H; destruct (keys_sound _ (key_in r H)) as [S1 S2].
  apply (affine_near (scaling (of r)) (bare (of r)) _ _ x); [exact S1|exact S2|apply (l_runs r H)|apply query_near].
Qed.

Lemma largest_near : Rabs (largest - score query ref) <= top.
Proof.
  apply Rabs_le; split.
  - assert (I := ref_in); rewrite <- l_keys in I; apply in_map_iff in I; destruct I as (r & R & I).
    assert (N := score_near r I); apply Rabs_le_inv in N; rewrite R in N.
    assert (M := largest_most r I); assert (T := proj1 (below_top _ ref_in)); lra.
  - apply in_map_iff in largest_in; destruct largest_in as (r & R & I).
    assert (N := score_near r I); apply Rabs_le_inv in N.
    assert (T := proj2 (below_top _ (key_in r I))); rewrite lead_score in T; lra.
Qed.

Lemma distance_near : forall r d', In r l -> reads (d r) d' ->
  Rabs (d' + (largest - score query ref) - lead (of r)) <= shift (of r).
Proof.
  intros r d' I Rd; destruct (l_runs r I) as (_ & (z' & m' & Rz & Rm & Hd) & _).
  assert (N := score_near r I); assert (L := largest_near); set (k := of r) in *.
  assert (H1 : Rabs (z' - m' - (z r - largest)) <= 2 * tau).
  { replace (z' - m' - (z r - largest)) with ((z' - z r) - (m' - largest)) by ring.
    apply Rle_trans with (1 := Rabs_triang _ _); rewrite Rabs_Ropp.
    generalize (reads_near _ _ Rz) (reads_near _ _ Rm); lra. }
  assert (H2 := rounds_near _ _ _ _ Hd H1).
  assert (H3 := near_trans _ _ _ _ _ (reads_near _ _ Rd) H2).
  assert (H4 : Rabs (z r - largest) <= Rabs (lead k) + score_error k + top).
  { replace (z r - largest) with (lead k + (z r - score query k) + - (largest - score query ref))
      by (rewrite lead_score; ring).
    apply Rle_trans with (1 := Rabs_triang _ _); rewrite Rabs_Ropp; apply Rplus_le_compat; [|exact L].
    apply Rle_trans with (1 := Rabs_triang _ _); lra. }
  replace (d' + (largest - score query ref) - lead k)
    with ((d' - (z r - largest)) + (z r - score query k)) by (rewrite lead_score; ring).
  apply Rle_trans with (1 := Rabs_triang _ _); unfold shift.
  assert (u * (Rabs (z r - largest) + 2 * tau) <= u * (Rabs (lead k) + score_error k + top + 2 * tau))
    by (apply Rmult_le_compat_l; lra).
  lra.
Qed.

Definition scale := exp (largest - score query ref) / mass.

Lemma scale_pos : 0 < scale.
Proof. assert (M := mass_ge_1); apply Rmult_lt_0_compat; [apply exp_pos|apply Rinv_0_lt_compat; lra]. Qed.

Lemma scale_le : scale <= exp top.
Proof.
  assert (M := mass_ge_1); assert (L := largest_near); apply Rabs_le_inv in L; unfold scale, Rdiv.
  rewrite <- (Rmult_1_r (exp top)); apply Rmult_le_compat; [left; apply exp_pos|left; apply Rinv_0_lt_compat; lra| |].
  - apply exp_le; lra.
  - rewrite <- Rinv_1 at 1; apply Rinv_le_contravar; lra.
Qed.

Lemma exponential_near : forall r, In r l -> Rabs (scale * e r - share (of r)) <= off (of r).
Proof.
  intros r I; destruct (l_runs r I) as (_ & _ & (d' & eps & t' & Rd & He & Ht & Ee) & _).
  assert (N := distance_near r d' I Rd); set (k := of r) in *.
  assert (M := mass_ge_1); assert (P := scale_pos); assert (L := scale_le).
  assert (X := exp_moves _ _ _ _ N He); rewrite exp_plus in X.
  unfold off; fold (theta k) in X.
  replace (scale * e r - share k)
    with ((exp d' * exp (largest - score query ref) * (1 + eps) - exp (lead k)) / mass + scale * t')
    by (rewrite Ee; unfold scale, share; field; lra).
  apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat.
  - unfold Rdiv; rewrite Rabs_mult, (Rabs_pos_eq (/ mass)) by (left; apply Rinv_0_lt_compat; lra).
    unfold share, Rdiv; rewrite (Rmult_assoc (exp (lead k))), (Rmult_comm (/ mass)), <- Rmult_assoc.
    apply Rmult_le_compat_r; [left; apply Rinv_0_lt_compat; lra|exact X].
  - rewrite Rabs_mult, (Rabs_pos_eq scale) by lra; rewrite (Rmult_comm (4 * tau)).
    apply Rmult_le_compat; try apply Rabs_pos; lra.
Qed.

Lemma exponential_range : forall r, In r l -> - (4 * tau) <= e r <= 2.
Proof.
  intros r I; destruct (l_runs r I) as (_ & (z' & m' & Rz & Rm & Hd) & (d' & eps & t' & Rd & He & Ht & Ee) & _).
  assert (Z := largest_most r I); assert (T := tau_small).
  assert (H1 : Rabs (z' - m' - (z r - largest)) <= 2 * tau).
  { replace (z' - m' - (z r - largest)) with ((z' - z r) - (m' - largest)) by ring.
    apply Rle_trans with (1 := Rabs_triang _ _); rewrite Rabs_Ropp.
    generalize (reads_near _ _ Rz) (reads_near _ _ Rm); lra. }
  destruct Hd as (dl & et & H2 & H3 & Ed); assert (Rn := reads_near _ _ Rd).
  apply Rabs_le_inv in H1; apply Rabs_le_inv in H2; apply Rabs_le_inv in H3; apply Rabs_le_inv in Rn.
  apply Rabs_le_inv in He; apply Rabs_le_inv in Ht.
  assert (D : d' <= / 100).
  { assert ((z' - m') * (1 + dl) <= 2 * tau * (1 + dl)) by (apply Rmult_le_compat_r; lra).
    assert (2 * tau * (1 + dl) <= 2 * tau * 2) by (apply Rmult_le_compat_l; lra). lra. }
  assert (X : exp d' <= / (1 - / 100)).
  { replace d' with (- - d') by ring; rewrite exp_Ropp; apply Rinv_le_contravar; [lra|].
    generalize (exp_ineq1_le (- d')); lra. }
  assert (0 < exp d') by apply exp_pos.
  rewrite Ee; split.
  - assert (0 <= exp d' * (1 + eps)) by (apply Rmult_le_pos; lra). lra.
  - assert (exp d' * (1 + eps) <= / (1 - / 100) * (1 + / 1000)) by (apply Rmult_le_compat; lra). lra.
Qed.

Let p := length keys.

Lemma runs_count : length l = p.
Proof. unfold p; rewrite <- l_keys, map_length; reflexivity. Qed.

Lemma sum_moves :
  1 - sum off keys <= scale * sum e l /\
  Rabs (sum (fun r => e r * value s (of r)) l / sum e l - output)
    <= sum (fun k => off k * Rabs (value s k - output)) keys / remaining.
Proof.
  assert (P := scale_pos).
  destruct (average_moves run l (fun r => share (of r)) (fun r => scale * e r) (fun r => off (of r))
              (fun r => value s (of r))) as [L B].
  - rewrite <- (over_runs share); apply share_sum.
  - exact exponential_near.
  - rewrite <- (over_runs off); lra.
  - rewrite <- (over_runs off), sum_scale in L; split; [exact L|].
    cbv zeta in B.
    rewrite <- (over_runs (fun k => share k * value s k)) in B; fold output in B.
    rewrite <- (over_runs off), <- (over_runs (fun k => off k * Rabs (value s k - output))) in B.
    fold remaining in B.
    rewrite (sum_ext _ (fun r => scale * (e r * value s (of r)))) in B by (intros; ring).
    rewrite !sum_scale in B.
    replace (sum (fun r => e r * value s (of r)) l / sum e l)
      with (scale * sum (fun r => e r * value s (of r)) l / (scale * sum e l)); [exact B|].
    field; split; [|lra].
    intros Z; rewrite Z in L; lra.
Qed.

Lemma sum_e_ge : / 6 <= sum e l.
Proof.
  assert (P := scale_pos); assert (L := proj1 sum_moves); assert (U := scale_le).
  assert (X : exp top <= 3) by (apply Rle_trans with (exp 1); [apply exp_le; exact top_small|apply exp_le_3]).
  assert (0 < sum e l).
  { destruct (Rle_or_lt (sum e l) 0) as [N|N]; [|exact N].
    assert (scale * sum e l <= scale * 0) by (apply Rmult_le_compat_l; lra). lra. }
  assert (scale * sum e l <= 3 * sum e l) by (apply Rmult_le_compat_r; lra). lra.
Qed.

Lemma mass_near :
  sum (fun r => Rabs (e r) * size (of r)) l / sum e l
    <= sum (fun k => (share k + off k) * size k) keys / remaining.
Proof.
  assert (P := scale_pos); assert (L := proj1 sum_moves); assert (G := sum_e_ge).
  assert (H := average_mass run l (fun r => share (of r)) (fun r => scale * e r) (fun r => off (of r))
              (fun r => size (of r))).
  rewrite <- (over_runs share), <- (over_runs off) in H.
  rewrite <- (over_runs (fun k => (share k + off k) * size k)) in H; fold remaining in H.
  rewrite (sum_scale scale e l) in H.
  rewrite (sum_ext (fun k => Rabs (scale * e k) * size (of k)) (fun r => scale * (Rabs (e r) * size (of r)))) in H
    by (intros; rewrite Rabs_mult, (Rabs_pos_eq scale) by lra; ring).
  rewrite sum_scale in H.
  replace (sum (fun r => Rabs (e r) * size (of r)) l / sum e l)
    with (scale * sum (fun r => Rabs (e r) * size (of r)) l / (scale * sum e l)) by (field; lra).
  apply H; [apply share_sum| | |exact exponential_near|lra|exact L].
  - intros; apply share_pos.
  - intros; unfold size; generalize (Rabs_pos (own (of k) * s)) (Rabs_pos (constant (of k))); lra.
Qed.

Lemma denominator_near : Rabs (denominator - sum e l) <= INR p * u * sum e l.
Proof.
  assert (H := total_near _ _ denominator_runs); rewrite map_length, !sum_map, runs_count in H; simpl in H.
  assert (G := sum_e_ge); destruct few as [F _]; fold p in F.
  assert (A : sum (fun r => Rabs (e r)) l <= sum e l + 8 * tau * INR p).
  { rewrite <- runs_count, (Rmult_comm (8 * tau)), <- (sum_const (8 * tau) l), <- (sum_add e (fun _ => 8 * tau)).
    apply sum_le; intros r I; generalize (exponential_range r I); intros B; unfold Rabs.
    destruct (Rcase_abs (e r)); lra. }
  assert (P := G_ge_1 (p - 1)); set (q := (1 + u) ^ (p - 1)) in *; clearbody q.
  assert (Np := pos_INR p).
  assert (Nq : INR (p - 1) <= INR p) by (apply le_INR; lia).
  set (n := INR p) in *; set (n' := INR (p - 1)) in *; set (S := sum e l) in *.
  assert (H1 : (q - 1) * sum (fun r => Rabs (e r)) l <= (q - 1) * (S + 8 * tau * n)) by (apply Rmult_le_compat_l; lra).
  assert (H2 : 3 * tau * n' * q <= 3 * tau * n * q)
    by (apply Rmult_le_compat_r; [lra|apply Rmult_le_compat_l; lra]).
  assert (T0 : 0 <= tau * n) by (apply Rmult_le_pos; lra).
  assert (H3 : (q - 1) * (tau * n) <= (q - 1) * (tau * n) * (6 * S)).
  { rewrite <- (Rmult_1_r ((q - 1) * (tau * n))) at 1; apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|lra]. }
  assert (H4 : tau * n * q <= tau * n * q * (6 * S)).
  { rewrite <- (Rmult_1_r (tau * n * q)) at 1; apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|lra]. }
  assert (H5 : S * ((q - 1) * (1 + 48 * tau * n) + 24 * tau * n * q + 6 * tau) <= S * (n * u))
    by (apply Rmult_le_compat_l; lra).
  assert (0 <= S * tau) by (apply Rmult_le_pos; lra).
  assert (0 <= tau * n * q * S) by (apply Rmult_le_pos; [apply Rmult_le_pos; lra|lra]).
  apply Rle_trans with (1 := H).
  apply Rle_trans with ((q - 1) * S + 8 * ((q - 1) * (tau * n)) + 3 * (tau * n * q)); [lra|].
  apply Rle_trans with ((q - 1) * S + 8 * ((q - 1) * (tau * n) * (6 * S)) + 4 * (tau * n * q * (6 * S)) + 6 * (S * tau)); [lra|].
  apply Rle_trans with (S * ((q - 1) * (1 + 48 * tau * n) + 24 * tau * n * q + 6 * tau)); [apply Req_le; ring|lra].
Qed.

Lemma denominator_ge : / 8 <= denominator.
Proof.
  assert (H := denominator_near); assert (G := sum_e_ge); destruct few as [_ F]; fold p in F.
  apply Rabs_le_inv in H.
  assert (INR p * u * sum e l <= / 4 * sum e l) by (apply Rmult_le_compat_r; lra). lra.
Qed.

Lemma denominator_read : forall t', reads denominator t' -> t' = denominator.
Proof.
  intros t' [H|[H _]]; [exact H|]; assert (G := denominator_ge); rewrite Rabs_pos_eq in H; lra.
Qed.

Lemma near_add : forall T m G a b c, near T m G a b -> 1 <= G -> near (T + c) (m + Rabs c) G a (b + c).
Proof.
  intros T m G a b c [H1 H2] HG; split; [apply Rle_trans with (1 := Rabs_triang _ _); lra|].
  replace (b + c - (T + c)) with (b - T) by ring.
  assert (0 <= (G - 1) * Rabs c) by (apply Rmult_le_pos; [lra|apply Rabs_pos]). lra.
Qed.

Lemma near_times : forall k T m G a b, near T m G a b -> 1 <= G -> 0 <= a ->
  near (k * T) (Rabs k * m) G (Rabs k * a) (k * b).
Proof.
  intros k T m G a b [H1 H2] HG Ha; split; [rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|exact H1]|].
  rewrite <- Rmult_minus_distr_l, Rabs_mult.
  apply Rle_trans with (Rabs k * ((G - 1) * m + a)); [apply Rmult_le_compat_l; [apply Rabs_pos|exact H2]|lra].
Qed.

Lemma value_near : forall k b, affine (own k) (constant k) s b ->
  near (value s k) (size k) ((1 + u) ^ 2) (4 * tau * (Rabs (own k) + 1)) b.
Proof.
  intros k b (s' & Rs & H).
  assert (K := Rabs_pos (own k)); assert (0 <= Rabs (own k) * tau) by (apply Rmult_le_pos; lra).
  assert (0 <= Rabs (own k) * tau * u) by (apply Rmult_le_pos; lra).
  assert (Rabs (own k) * tau * u <= Rabs (own k) * tau * / 1000) by (apply Rmult_le_compat_l; lra).
  assert (0 <= tau * u <= tau * / 1000) by (split; [apply Rmult_le_pos|apply Rmult_le_compat_l]; lra).
  assert (N := near_reads _ _ _ _ _ _ (near_exact s) Rs).
  assert (N1 := near_times (own k) _ _ _ _ _ N (Rle_refl 1) ltac:(lra)).
  unfold value, size; rewrite Rabs_mult.
  destruct H as [[F _]|(q & q' & [P _] & Rq & [A _])].
  - assert (N2 := near_rounds _ _ _ _ _ _ (near_add _ _ _ _ _ (constant k) N1 (Rle_refl 1)) F).
    apply (near_weaken _ _ _ _ _ _ _ _ N2); [nra|lra|nra|lra].
  - assert (N2 := near_reads _ _ _ _ _ _ (near_rounds _ _ _ _ _ _ N1 P) Rq).
    assert (N3 := near_rounds _ _ _ _ _ _ (near_add _ _ _ _ _ (constant k) N2 ltac:(lra)) A).
    apply (near_weaken _ _ _ _ _ _ _ _ N3); [nra|lra|nra|].
    assert (Rabs (own k) * tau * u * u <= Rabs (own k) * tau * u * / 1000) by (apply Rmult_le_compat_l; lra).
    lra.
Qed.

Lemma weight_near : forall r w', In r l -> reads (w r) w' ->
  near (e r / denominator) (Rabs (e r) / denominator) ((1 + u) ^ 3) (22 * tau) w'.
Proof.
  intros r w' I Rw; assert (Q := denominator_ge); assert (B := exponential_range r I).
  destruct (l_runs r I) as (_ & _ & _ & (e' & t' & Re & Rt & H) & _); apply denominator_read in Rt; subst t'.
  set (D := denominator) in *.
  assert (ID : 0 < / D <= 8).
  { split; [apply Rinv_0_lt_compat; lra|rewrite <- (Rinv_inv 8); apply Rinv_le_contravar; lra]. }
  assert (Ie : Rabs (e r) <= 2) by (apply Rabs_le; lra).
  assert (Pe := Rabs_pos (e r)).
  assert (0 <= tau * u <= tau * / 1000) by (split; [apply Rmult_le_pos|apply Rmult_le_compat_l]; lra).
  assert (0 <= tau * / D <= tau * 8) by (split; [apply Rmult_le_pos|apply Rmult_le_compat_l]; lra).
  assert (0 <= tau * / D * u <= tau * / D * / 1000) by (split; [apply Rmult_le_pos|apply Rmult_le_compat_l]; lra).
  assert (N := near_reads _ _ _ _ _ _ (near_exact (e r)) Re).
  assert (ND : near (/ D) (/ D) 1 0 (/ D)) by (generalize (near_exact (/ D)); rewrite Rabs_pos_eq by lra; auto).
  destruct H as [H|(r1 & r2 & r' & Hr1 & Hr2 & Rr & H)].
  - assert (N1 := near_mult _ _ _ _ _ _ _ _ _ _ N ND (Rle_refl 1) (Rle_refl 1) ltac:(lra) (Rle_refl 0)).
    assert (N2 := near_reads _ _ _ _ _ _ (near_rounds _ _ _ _ _ _ N1 H) Rw).
    apply (near_weaken _ _ _ _ _ _ _ _ N2); [lra|unfold Rdiv; lra|nra|lra].
  - unfold Rdiv in Hr1; rewrite Rmult_1_l in Hr1.
    assert (M := near_reads _ _ _ _ _ _ (near_rounds _ _ _ _ _ _ (near_rounds _ _ _ _ _ _ ND Hr1) Hr2) Rr).
    assert (M' : near (/ D) (/ D) ((1 + u) ^ 2) (4 * tau) r') by (apply (near_weaken _ _ _ _ _ _ _ _ M); [nra|lra|nra|lra]).
    assert (G2 : 1 <= (1 + u) ^ 2 <= 1 + / 100) by (split; nra).
    assert (N1 := near_mult _ _ _ _ _ _ _ _ _ _ N M' (Rle_refl 1) (proj1 G2) ltac:(lra) ltac:(lra)).
    assert (N2 := near_reads _ _ _ _ _ _ (near_rounds _ _ _ _ _ _ N1 H) Rw).
    apply (near_weaken _ _ _ _ _ _ _ _ N2); [nra|unfold Rdiv; lra|simpl; lra|].
    set (g := (1 + u) ^ 2) in *.
    assert (A1 : g * / D <= (1 + / 100) * 8) by (apply Rmult_le_compat; lra).
    assert (A2 : tau * (g * / D + 4 * tau) <= tau * 9) by (apply Rmult_le_compat_l; lra).
    assert (A3 : Rabs (e r) * tau <= 2 * tau) by (apply Rmult_le_compat_r; lra).
    assert (A4 : ((0 + tau) * (g * / D + 4 * tau) + 1 * Rabs (e r) * (4 * tau)) * (1 + u) <= (17 * tau) * (1 + u))
      by (apply Rmult_le_compat_r; lra).
    lra.
Qed.

Definition extra : nat := if gated then 2%nat else 0%nat.

Lemma term_near : forall r, In r l ->
  near (e r / denominator * value s (of r)) (Rabs (e r) / denominator * size (of r)) ((1 + u) ^ (4 + extra))
    (90 * tau * (size (of r) + Rabs (own (of r)) + 1)) (t r).
Proof.
  intros r I; destruct (l_runs r I) as (_ & _ & _ & _ & Hv & w' & v' & Rw & Rv & H).
  assert (Nw := weight_near r w' I Rw); assert (Q := denominator_ge); assert (B := exponential_range r I).
  set (k := of r) in *; assert (K := Rabs_pos (own k)).
  assert (Nv : near (value s k) (size k) ((1 + u) ^ extra) (5 * tau * (Rabs (own k) + 1)) v').
  { assert (0 <= tau * Rabs (own k)) by (apply Rmult_le_pos; lra).
    unfold extra; destruct gated.
    - apply (near_weaken _ _ _ _ _ _ _ _ (near_reads _ _ _ _ _ _ (value_near k _ Hv) Rv)); [nra|lra|lra|lra].
    - unfold value, size; rewrite (not_gated eq_refl k (key_in r I)), Rmult_0_l, Rabs_R0, !Rplus_0_l.
      subst v'; rewrite Hv; fold k.
      apply (near_weaken _ _ _ _ _ _ _ _ (near_exact (constant k))); simpl; lra. }
  assert (ID : 0 < / denominator <= 8).
  { split; [apply Rinv_0_lt_compat; lra|rewrite <- (Rinv_inv 8); apply Rinv_le_contravar; lra]. }
  assert (Z : 0 <= size k) by (unfold size; generalize (Rabs_pos (own k * s)) (Rabs_pos (constant k)); lra).
  assert (Ge : 1 <= (1 + u) ^ extra <= 1 + / 100).
  { split; [apply G_ge_1|]; apply Rle_trans with ((1 + u) ^ 2); [apply G_mono; unfold extra; destruct gated; lia|nra]. }
  assert (G3 : 1 <= (1 + u) ^ 3 <= 1 + / 100) by (split; [apply G_ge_1|simpl; nra]).
  assert (O : 0 <= tau * (Rabs (own k) + 1)) by (apply Rmult_le_pos; lra).
  assert (N := near_mult _ _ _ _ _ _ _ _ _ _ Nw Nv (proj1 G3) (proj1 Ge) ltac:(lra) ltac:(lra)).
  assert (N1 := near_rounds _ _ _ _ _ _ N H).
  apply (near_weaken _ _ _ _ _ _ _ _ N1).
  - assert (1 <= (1 + u) ^ 3 * (1 + u) ^ extra) by (rewrite <- pow_add; apply G_ge_1). nra.
  - lra.
  - replace (4 + extra)%nat with (3 + extra + 1)%nat by lia.
    rewrite (pow_add (1 + u) (3 + extra) 1), (pow_add (1 + u) 3), pow_1; lra.
  - set (m := Rabs (e r) / denominator) in *.
    assert (M : 0 <= m <= 16).
    { unfold m, Rdiv; split; [apply Rmult_le_pos; [apply Rabs_pos|lra]|].
      replace 16 with (2 * 8) by ring; apply Rmult_le_compat; [apply Rabs_pos|lra|apply Rabs_le; lra|lra]. }
    set (g := (1 + u) ^ extra) in *; set (h := (1 + u) ^ 3) in *.
    set (o := Rabs (own k) + 1) in *.
    assert (A1 : g * size k <= (1 + / 100) * size k) by (apply Rmult_le_compat_r; lra).
    assert (A2 : tau * (g * size k) <= tau * ((1 + / 100) * size k)) by (apply Rmult_le_compat_l; lra).
    assert (A3 : tau * (tau * o) <= / 1000 * (tau * o)) by (apply Rmult_le_compat_r; lra).
    assert (A4 : h * m <= (1 + / 100) * 16) by (apply Rmult_le_compat; lra).
    assert (A5 : h * m * (tau * o) <= (1 + / 100) * 16 * (tau * o)) by (apply Rmult_le_compat_r; lra).
    assert (A6 : 0 <= tau * size k) by (apply Rmult_le_pos; lra).
    assert (A7 : 22 * tau * (g * size k + 5 * tau * o) + h * m * (5 * tau * o) <= 23 * (tau * size k) + 82 * (tau * o)) by lra.
    assert (A8 : (22 * tau * (g * size k + 5 * tau * o) + h * m * (5 * tau * o)) * (1 + u)
                 <= (23 * (tau * size k) + 82 * (tau * o)) * (1 + / 1000)).
    { apply Rmult_le_compat; [|lra|exact A7|lra].
      assert (0 <= tau * (g * size k)) by (apply Rmult_le_pos; [lra|apply Rmult_le_pos; lra]).
      assert (0 <= tau * (tau * o)) by (apply Rmult_le_pos; lra).
      assert (0 <= h * m * (tau * o)) by (apply Rmult_le_pos; [apply Rmult_le_pos; lra|lra]). lra. }
    replace (size k + Rabs (own k) + 1) with (size k + o) by (unfold o; ring).
    assert (tau * 1 <= tau * o) by (apply Rmult_le_compat_l; unfold o; lra).
    lra.
Qed.

Lemma quotient_moves : forall G B N D S q, 1 <= G -> Rabs N <= B -> 0 < S -> 0 < D -> 0 <= q <= / 4 ->
  Rabs (D - S) <= q * S ->
  (G - 1) * (B / D) + Rabs (N / D - N / S) <= (G / (1 - q) - 1) * (B / S).
Proof.
  intros G B N D S q HG HN HS HD Hq H; apply Rabs_le_inv in H.
  assert (0 <= B) by (apply Rle_trans with (2 := HN), Rabs_pos).
  assert (PS : 0 < / S) by (apply Rinv_0_lt_compat; lra).
  assert (PD : 0 < / D) by (apply Rinv_0_lt_compat; lra).
  assert (Hn : Rabs (N / D - N / S) <= B * Rabs (/ D - / S)).
  { replace (N / D - N / S) with (N * (/ D - / S)) by (field; lra).
    rewrite Rabs_mult; apply Rmult_le_compat_r; [apply Rabs_pos|exact HN]. }
  assert (Iq : 1 + q <= / (1 - q)).
  { apply Rmult_le_reg_r with (1 - q); [lra|]. rewrite Rinv_l by lra.
    assert (0 <= q * q) by (apply Rmult_le_pos; lra). lra. }
  assert (BS : 0 <= B * / S) by (apply Rmult_le_pos; lra).
  assert (BD : 0 <= B * / D) by (apply Rmult_le_pos; lra).
  assert (GIq : G * (1 + q) <= G * / (1 - q)) by (apply Rmult_le_compat_l; lra).
  assert (q <= G * q) by (rewrite <- (Rmult_1_l q) at 1; apply Rmult_le_compat_r; lra).
  unfold Rdiv in *; destruct (Rle_or_lt D S) as [L|L].
  - assert (/ S <= / D) by (apply Rinv_le_contravar; lra).
    rewrite (Rabs_pos_eq (/ D - / S)) in Hn by lra.
    assert (X : / D <= / (1 - q) * / S).
    { rewrite <- Rinv_mult; apply Rinv_le_contravar; [apply Rmult_lt_0_compat; lra|lra]. }
    assert (B * / D <= B * (/ (1 - q) * / S)) by (apply Rmult_le_compat_l; lra).
    assert (G * (B * / D) <= G * (B * (/ (1 - q) * / S))) by (apply Rmult_le_compat_l; lra).
    lra.
  - assert (/ D <= / S) by (apply Rinv_le_contravar; lra).
    rewrite (Rabs_minus_sym (/ D)), (Rabs_pos_eq (/ S - / D)) in Hn by lra.
    assert (X : / S - / D <= q * / S).
    { replace (/ S - / D) with ((D - S) * (/ D * / S)) by (field; lra).
      apply Rle_trans with (q * S * (/ D * / S)).
      - apply Rmult_le_compat_r; [left; apply Rmult_lt_0_compat; lra|lra].
      - apply Rle_trans with (q * S * (/ S * / S)).
        + apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|apply Rmult_le_compat_r; lra].
        + apply Req_le; field; lra. }
    assert (Y1 : B * (/ S - / D) <= B * (q * / S)) by (apply Rmult_le_compat_l; lra).
    assert (Y2 : (G - 1) * (B * / D) <= (G - 1) * (B * / S))
      by (apply Rmult_le_compat_l; [lra|apply Rmult_le_compat_l; lra]).
    assert (Y3 : (G - 1 + q) * (B * / S) <= (G * / (1 - q) - 1) * (B * / S)) by (apply Rmult_le_compat_r; lra).
    lra.
Qed.

Lemma executed_near : Rabs (y - output) <= rounding_bound - 200 * tau.
Proof.
  assert (F := proj2 few); fold p in F.
  assert (Q := denominator_ge); assert (S6 := sum_e_ge); assert (DN := denominator_near).
  assert (Np : 1 <= INR p).
  { rewrite <- runs_count; replace 1 with (INR 1) by reflexivity; apply le_INR.
    assert (X := total_length _ _ y_runs); rewrite map_length in X; exact X. }
  assert (N := near_total run _ _ _ t _ l y (G_ge_1 (4 + extra)) term_near y_runs).
  rewrite runs_count, <- pow_add, !sum_scale in N.
  assert (Rr : (4 + extra + (p - 1))%nat = roundings).
  { assert (1 <= p)%nat by (apply INR_le; simpl; lra). unfold roundings, extra; fold p; destruct gated; lia. }
  rewrite Rr in N; destruct N as [N1 N2].
  set (D := denominator) in *; set (S := sum e l) in *; set (G := (1 + u) ^ roundings) in *.
  assert (HG : 1 <= G) by apply G_ge_1.
  set (Nu := sum (fun r => e r * value s (of r)) l).
  set (B := sum (fun r => Rabs (e r) * size (of r)) l).
  assert (E1 : sum (fun r => e r / D * value s (of r)) l = Nu / D).
  { unfold Nu, Rdiv; rewrite Rmult_comm, <- sum_scale; apply sum_ext; intros; ring. }
  assert (E2 : sum (fun r => Rabs (e r) / D * size (of r)) l = B / D).
  { unfold B, Rdiv; rewrite Rmult_comm, <- sum_scale; apply sum_ext; intros; ring. }
  rewrite E1, E2 in N2.
  assert (HB : Rabs Nu <= B).
  { apply Rle_trans with (1 := sum_Rabs _ _), sum_le; intros r _; rewrite Rabs_mult.
    apply Rmult_le_compat_l; [apply Rabs_pos|].
    apply Rle_trans with (1 := Rabs_triang _ _); unfold size; lra. }
  assert (q0 : 0 <= INR p * u) by (apply Rmult_le_pos; lra).
  assert (M := quotient_moves G B Nu D S (INR p * u) HG HB ltac:(lra) ltac:(lra) ltac:(lra) DN).
  assert (A := proj2 sum_moves); fold S Nu in A.
  assert (C := mass_near); fold S B in C.
  assert (Fp : 0 <= G / (1 - INR p * u) - 1).
  { assert (1 * 1 <= G * / (1 - INR p * u)).
    { apply Rmult_le_compat; [lra|lra|lra|]. rewrite <- Rinv_1 at 1; apply Rinv_le_contravar; lra. }
    unfold Rdiv; lra. }
  assert (C' := Rmult_le_compat_l _ _ _ Fp C).
  replace (y - output) with ((y - Nu / D) + ((Nu / D - Nu / S) + (Nu / S - output))) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _).
  assert (T := Rabs_triang (Nu / D - Nu / S) (Nu / S - output)).
  unfold rounding_bound, factor; fold p G.
  assert (O : sum (fun r => size (of r) + Rabs (own (of r)) + 1) l = sum (fun k => size k + Rabs (own k) + 1) keys)
    by (symmetry; apply (over_runs (fun k => size k + Rabs (own k) + 1))).
  rewrite O in N2.
  set (sizes := sum (fun k => size k + Rabs (own k) + 1) keys) in *.
  assert (Sz : INR p <= sizes).
  { unfold p, sizes; rewrite <- (Rmult_1_r (INR (length keys))), <- sum_const; apply sum_le; intros k _.
    unfold size; generalize (Rabs_pos (own k * s)) (Rabs_pos (constant k)) (Rabs_pos (own k)); lra. }
  assert (Pq : (1 + u) ^ (p - 1) <= 5 / 4).
  { destruct few as [F1 F2]; fold p in F1, F2; assert (P := G_ge_1 (p - 1)).
    set (g := (1 + u) ^ (p - 1)) in *; clearbody g.
    assert (0 <= tau * INR p) by (apply Rmult_le_pos; lra).
    assert (0 <= (g - 1) * (tau * INR p)) by (apply Rmult_le_pos; lra).
    assert (0 <= (tau * INR p) * g) by (apply Rmult_le_pos; lra). lra. }
  assert (Tn : (1 + u) ^ (p - 1) * (90 * tau * sizes + 3 * tau * INR (p - 1)) <= 5 / 4 * (93 * (tau * sizes))).
  { assert (INR (p - 1) <= INR p) by (apply le_INR; lia).
    assert (tau * INR (p - 1) <= tau * sizes) by (apply Rmult_le_compat_l; lra).
    assert (0 <= tau * INR (p - 1)) by (apply Rmult_le_pos; [lra|apply pos_INR]).
    apply Rmult_le_compat; [generalize (G_ge_1 (p - 1)); lra|lra|exact Pq|lra]. }
  assert (tau * 1 <= tau * sizes) by (apply Rmult_le_compat_l; lra).
  lra.
Qed.

End Execution.

(** The theorem: one head, its output weight 1 *)

Theorem head_rounding : forall y, runs_head gated gain offset keys s y ->
  Rabs (y - exact_head gain offset keys s) <= rounding_bound - 200 * tau.
Proof.
  intros y (x & largest & den & l & H1 & H2 & H3 & H4 & H5 & H6 & H7).
  rewrite <- output_exact; apply (executed_near x largest den y l); assumption.
Qed.


(** The same bound in a form that interval arithmetic evaluates well, with constants for a stretch of inputs: [lost] bounds
    the share of the weights that moves, [grown] bounds [factor]. *)

Definition swing (k : key) := (shift k + 2 * (shift k * shift k)) * (1 + E) + E.
Definition numerator := sum (fun k => exp (lead k) * value s k) keys.
Definition moving := sum (fun k => exp (lead k) * swing k) keys / mass.
Definition spread (grown : R) :=
  sum (fun k => exp (lead k)
    * (swing k * Rabs (value s k - numerator / mass) + grown * ((1 + swing k) * size k))) keys / mass.
Definition sizes := sum (fun k => size k + Rabs (own k) + 1) keys.
Definition underflow := (24 * INR (length keys) + 448) * tau * sizes.

Lemma exp_quadratic : forall a, 0 <= a <= / 2 -> exp a <= 1 + a + 2 * (a * a).
Proof.
  intros a H; assert (L := exp_ineq1_le (- a)).
  replace a with (- - a) at 1 by ring; rewrite exp_Ropp.
  apply Rle_trans with (/ (1 + - a)); [apply Rinv_le_contravar; lra|].
  apply Rmult_le_reg_r with (1 + - a); [lra|]; rewrite Rinv_l by lra.
  assert (0 <= a * a * (1 - 2 * a)) by (apply Rmult_le_pos; [apply Rmult_le_pos|]; lra). lra.
Qed.

Lemma shift_pos : forall k, In k keys -> 0 <= shift k.
Proof.
  intros k K; assert (P := score_error_pos k); assert (T := proj1 (below_top k K)); unfold shift.
  assert (0 <= u * (Rabs (lead k) + score_error k + top + 2 * tau))
    by (apply Rmult_le_pos; [lra|generalize (Rabs_pos (lead k)); lra]). lra.
Qed.

Lemma theta_swing : forall k, In k keys -> shift k <= / 2 -> 0 <= theta k <= swing k.
Proof.
  intros k K H; assert (P := shift_pos k K); assert (Q := exp_quadratic _ (conj P H)).
  unfold theta, swing; assert (L := exp_ineq1_le (shift k)).
  assert (1 * (1 + E) <= exp (shift k) * (1 + E)) by (apply Rmult_le_compat_r; lra).
  assert (exp (shift k) * (1 + E) <= (1 + shift k + 2 * (shift k * shift k)) * (1 + E)) by (apply Rmult_le_compat_r; lra).
  lra.
Qed.

Lemma numerator_output : output = numerator / mass.
Proof.
  assert (M := mass_ge_1); unfold output, numerator, share, Rdiv; rewrite Rmult_comm, <- sum_scale.
  apply sum_ext; intros; ring.
Qed.

Lemma size_pos : forall k, Rabs (value s k) <= size k.
Proof. intros k; unfold value, size; apply Rabs_triang. Qed.

Lemma sizes_ge : 1 <= sizes.
Proof.
  unfold sizes; apply Rle_trans with (size ref + Rabs (own ref) + 1).
  - unfold size; generalize (Rabs_pos (own ref * s)) (Rabs_pos (constant ref)) (Rabs_pos (own ref)); lra.
  - apply (sum_one_le (fun k => size k + Rabs (own k) + 1)); [|exact ref_in]; intros k _.
    unfold size; generalize (Rabs_pos (own k * s)) (Rabs_pos (constant k)) (Rabs_pos (own k)); lra.
Qed.

Lemma output_size : Rabs output <= sizes.
Proof.
  unfold output; apply Rle_trans with (1 := sum_Rabs _ _).
  unfold sizes; apply sum_le; intros k K; rewrite Rabs_mult, (Rabs_pos_eq (share k)) by apply share_pos.
  assert (S1 : share k <= 1) by (rewrite <- share_sum; apply sum_one_le; [intros; apply share_pos|exact K]).
  assert (P := share_pos k); assert (Z := size_pos k); assert (V := Rabs_pos (value s k)).
  assert (share k * Rabs (value s k) <= 1 * Rabs (value s k)) by (apply Rmult_le_compat_r; lra).
  generalize (Rabs_pos (own k)); lra.
Qed.

Lemma exp_top : 0 < exp top <= 3.
Proof. split; [apply exp_pos|]; apply Rle_trans with (exp 1); [apply exp_le; exact top_small|apply exp_le_3]. Qed.

Lemma off_moving : (forall k, In k keys -> shift k <= / 2) ->
  sum off keys <= moving + 12 * tau * INR (length keys).
Proof.
  intros H; unfold moving, Rdiv; rewrite (Rmult_comm (sum _ keys)), <- sum_scale.
  rewrite (Rmult_comm (12 * tau)), <- (sum_const (12 * tau) keys).
  rewrite <- (sum_add (fun k => / mass * (exp (lead k) * swing k)) (fun _ => 12 * tau)).
  apply sum_le; intros k K; unfold off; assert (T := theta_swing k K (H k K)); assert (P := share_pos k).
  assert (X := exp_top).
  assert (tau * exp top <= tau * 3) by (apply Rmult_le_compat_l; lra).
  assert (share k * theta k <= share k * swing k) by (apply Rmult_le_compat_l; lra).
  unfold share, Rdiv in *; lra.
Qed.

Lemma bound_spread : forall lost grown,
  (forall k, In k keys -> shift k <= / 2) ->
  sum off keys <= lost <= / 2 -> factor <= grown <= 1 -> 0 <= factor ->
  rounding_bound <= spread grown / (1 - lost) + underflow.
Proof.
  intros lost grown H L G F0; assert (M := mass_ge_1); assert (X := exp_top); assert (Z1 := sizes_ge).
  assert (Os := output_size).
  set (c := 4 * tau * exp top).
  assert (C : 0 <= c <= 12 * tau).
  { unfold c; assert (0 <= tau * exp top) by (apply Rmult_le_pos; lra).
    assert (tau * exp top <= tau * 3) by (apply Rmult_le_compat_l; lra). lra. }
  assert (S0 : forall k, 0 <= size k) by (intros k; apply Rle_trans with (2 := size_pos k), Rabs_pos).
  assert (B : sum (fun k => off k * Rabs (value s k - output)) keys + factor * sum (fun k => (share k + off k) * size k) keys
              <= spread grown + 12 * tau * ((INR (length keys) + 2) * sizes)).
  { rewrite <- sum_scale, <- (sum_add (fun k => off k * Rabs (value s k - output))).
    apply Rle_trans with (sum (fun k =>
       / mass * (exp (lead k) * (swing k * Rabs (value s k - numerator / mass) + grown * ((1 + swing k) * size k)))
       + 12 * tau * (2 * (size k + Rabs (own k) + 1) + sizes)) keys).
    - apply sum_le; intros k K; rewrite <- numerator_output.
      assert (T := theta_swing k K (H k K)); assert (P := share_pos k); assert (S := S0 k).
      assert (V := Rabs_pos (value s k - output)).
      assert (V' : Rabs (value s k - output) <= size k + sizes).
      { apply Rle_trans with (1 := Rabs_triang _ _); rewrite Rabs_Ropp; generalize (size_pos k); lra. }
      assert (O := Rabs_pos (own k)).
      replace (/ mass * (exp (lead k) * (swing k * Rabs (value s k - output) + grown * ((1 + swing k) * size k))))
        with (share k * swing k * Rabs (value s k - output) + grown * (share k * (1 + swing k) * size k))
        by (unfold share; field; lra).
      unfold off; fold c.
      assert (A1 : share k * theta k <= share k * swing k) by (apply Rmult_le_compat_l; lra).
      assert (A2 : share k * theta k * Rabs (value s k - output) <= share k * swing k * Rabs (value s k - output))
        by (apply Rmult_le_compat_r; lra).
      assert (A3 : c * Rabs (value s k - output) <= 12 * tau * (size k + sizes)) by (apply Rmult_le_compat; lra).
      assert (A0 : 0 <= share k * theta k) by (apply Rmult_le_pos; lra).
      assert (A4 : (share k + share k * theta k) * size k <= share k * (1 + swing k) * size k)
        by (apply Rmult_le_compat_r; lra).
      assert (A5 : 0 <= (share k + share k * theta k) * size k) by (apply Rmult_le_pos; lra).
      assert (A6 : factor * ((share k + share k * theta k) * size k) <= grown * (share k * (1 + swing k) * size k))
        by (apply Rmult_le_compat; lra).
      assert (A7 : c * size k <= 12 * tau * size k) by (apply Rmult_le_compat_r; lra).
      assert (A8 : 0 <= c * size k) by (apply Rmult_le_pos; lra).
      assert (A9 : factor * (c * size k) <= 1 * (12 * tau * size k)) by (apply Rmult_le_compat; lra).
      assert (0 <= tau * Rabs (own k)) by (apply Rmult_le_pos; lra).
      lra.
    - rewrite (sum_add (fun k => / mass * (exp (lead k) * (swing k * Rabs (value s k - numerator / mass)
                                  + grown * ((1 + swing k) * size k))))
                 (fun k => 12 * tau * (2 * (size k + Rabs (own k) + 1) + sizes))).
      rewrite !sum_scale, (sum_add (fun k => 2 * (size k + Rabs (own k) + 1)) (fun _ => sizes)).
      rewrite sum_scale, sum_const; fold sizes; unfold spread, Rdiv; apply Req_le; ring. }
  unfold rounding_bound, remaining, underflow; fold sizes.
  assert (R0 : 0 < 1 - lost <= 1 - sum off keys) by lra.
  assert (R1 : / (1 - sum off keys) <= / (1 - lost) <= 2).
  { split; [apply Rinv_le_contravar; lra|]. rewrite <- (Rinv_inv 2); apply Rinv_le_contravar; lra. }
  assert (R2 : 0 < / (1 - sum off keys)) by (apply Rinv_0_lt_compat; lra).
  set (a := sum (fun k => off k * Rabs (value s k - output)) keys) in *.
  set (b := sum (fun k => (share k + off k) * size k) keys) in *.
  assert (Ko : forall k, In k keys -> 0 <= off k).
  { intros k K; unfold off; fold c; assert (T := theta_swing k K (H k K)).
    assert (0 <= share k * theta k) by (apply Rmult_le_pos; [apply share_pos|lra]). lra. }
  assert (a0 : 0 <= a) by (apply sum_nonneg; intros k K; apply Rmult_le_pos; [apply Ko, K|apply Rabs_pos]).
  assert (b0 : 0 <= b).
  { apply sum_nonneg; intros k K; apply Rmult_le_pos; [generalize (Ko k K) (share_pos k); lra|apply S0]. }
  assert (0 <= factor * b) by (apply Rmult_le_pos; lra).
  unfold Rdiv.
  assert (D1 : (a + factor * b) * / (1 - sum off keys) <= (a + factor * b) * / (1 - lost)) by (apply Rmult_le_compat_l; lra).
  assert (D2 : (a + factor * b) * / (1 - lost)
               <= (spread grown + 12 * tau * ((INR (length keys) + 2) * sizes)) * / (1 - lost))
    by (apply Rmult_le_compat_r; lra).
  assert (D3 : 0 <= 12 * tau * ((INR (length keys) + 2) * sizes)).
  { apply Rmult_le_pos; [lra|apply Rmult_le_pos; [generalize (pos_INR (length keys)); lra|lra]]. }
  assert (D4 : 12 * tau * ((INR (length keys) + 2) * sizes) * / (1 - lost) <= 12 * tau * ((INR (length keys) + 2) * sizes) * 2)
    by (apply Rmult_le_compat_l; lra).
  lra.
Qed.

End Head.
End Machine.

(** One head whose output weight is 1, on a stretch of inputs *)

(* What the module returns: the head's output, multiplied by 1 *)
Definition runs_single (u tau E : R) (gated : bool) (gain offset : R) (keys : list key) (s y : R) :=
  exists y0 y1, runs_head u tau E gated gain offset keys s y0 /\ reads tau y0 y1 /\ product u tau 1 y1 y.

Lemma scales_1 : scales 1.
Proof. right; exists 0%Z; simpl; apply Rabs_R1. Qed.

(* The conditions on one key that are checked numerically *)
Definition checked (u tau : R) (sq bq : bool) (gain offset s : R) (ref : key) (top : R) (k : key) :=
  score_error u tau sq bq gain offset s k <= top /\
  lead gain offset s ref k + score_error u tau sq bq gain offset s k <= top /\
  shift u tau sq bq gain offset s ref top k <= / 2.

Definition machine (u tau E : R) := 0 <= u <= / 1000 /\ 0 <= tau <= / 1000 /\ 0 <= E <= / 1000.

Lemma factor_pos : forall u gated keys, 0 <= u -> INR (length keys) * u <= / 4 -> 0 <= factor u gated keys.
Proof.
  intros u gated keys U H; unfold factor, Rdiv; assert (0 <= INR (length keys) * u) by (apply Rmult_le_pos; [apply pos_INR|exact U]).
  assert (1 * 1 <= (1 + u) ^ roundings gated keys * / (1 - INR (length keys) * u)); [|lra].
  apply Rmult_le_compat; [lra|lra|apply pow_R1_Rle; lra|]; rewrite <- Rinv_1 at 1; apply Rinv_le_contravar; lra.
Qed.

Theorem stretch_rounding : forall u tau E gated sq bq gain offset keys ref top lost grown s y,
  machine u tau E ->
  (sq = true -> scales gain) /\ (bq = true -> offset = 0) ->
  Forall sound keys -> In ref keys -> sums_ok u tau (length keys) ->
  (gated = false -> Forall (fun k => own k = 0) keys) ->
  factor u gated keys <= grown <= 1 -> top <= 1 ->
  Forall (checked u tau sq bq gain offset s ref top) keys ->
  moving u tau E sq bq gain offset keys s ref top + 12 * tau * INR (length keys) <= lost <= / 2 ->
  runs_single u tau E gated gain offset keys s y ->
  Rabs (y - exact_head gain offset keys s)
    <= spread u tau E sq bq gain offset keys s ref top grown / (1 - lost) + underflow tau keys s.
Proof.
  intros u tau E gated sq bq gain offset keys ref top lost grown s y (HU & HT & HE) Q S I P O G T C L (y0 & y1 & R0 & R1 & R2).
  rewrite Forall_forall in C, S.
  assert (B : forall k, In k keys -> score_error u tau sq bq gain offset s k <= top /\
                lead gain offset s ref k + score_error u tau sq bq gain offset s k <= top)
    by (intros k K; destruct (C k K) as (C1 & C2 & _); split; assumption).
  assert (H : forall k, In k keys -> shift u tau sq bq gain offset s ref top k <= / 2) by (intros k K; apply (C k K)).
  assert (M := off_moving u tau E HU HT HE sq bq gain offset keys s ref top I B T H).
  assert (O' : gated = false -> forall k, In k keys -> own k = 0).
  { intros g; specialize (O g); rewrite Forall_forall in O; exact O. }
  assert (N := head_rounding u tau E HU HT HE gated sq bq gain offset keys s ref top Q S I B T ltac:(lra) P O' y0 R0).
  assert (F := factor_pos u gated keys ltac:(lra) (proj2 P)).
  assert (W := bound_spread u tau E HU HT HE gated sq bq gain offset keys s ref top I B T ltac:(lra) lost grown H ltac:(lra) G F).
  assert (D1 := reads_near tau HT _ _ R1); destruct R2 as [_ R2]; specialize (R2 scales_1); rewrite Rmult_1_l in R2.
  assert (D2 := near_trans _ _ _ _ _ R2 (near_trans _ _ _ _ _ D1 N)); lra.
Qed.

(** float32 and float64 *)

Inductive format := float32 | float64.
Definition unit_roundoff (f : format) := match f with float32 => / 2 ^ 24 | float64 => / 2 ^ 53 end.
Definition smallest (f : format) := match f with float32 => / 2 ^ 126 | float64 => / 2 ^ 1022 end.
Definition exp_error (f : format) := match f with float32 => 40 * / 2 ^ 24 | float64 => 4 * / 2 ^ 53 end.

Lemma smallest_range : forall f, 0 <= smallest f <= / 2 ^ 126.
Proof.
  assert (P : forall n, 0 < / 2 ^ n) by (intros; apply Rinv_0_lt_compat, pow_lt; lra).
  intros [|]; unfold smallest; (split; [left; apply P|]); [lra|].
  apply Rinv_le_contravar; [apply pow_lt; lra|apply Rle_pow; [lra|lia]].
Qed.

Lemma machine_format : forall f, machine (unit_roundoff f) (smallest f) (exp_error f).
Proof.
  assert (P : forall n, 0 < / 2 ^ n) by (intros; apply Rinv_0_lt_compat, pow_lt; lra).
  assert (B : forall n, (24 <= n)%nat -> / 2 ^ n <= / 16777216).
  { intros n N; apply Rinv_le_contravar; [lra|]; apply Rle_trans with (2 ^ 24); [lra|apply Rle_pow; [lra|exact N]]. }
  assert (B24 := B 24%nat (le_n _)); assert (B53 := B 53%nat ltac:(lia)); assert (B126 := B 126%nat ltac:(lia)).
  intros f; assert (S := smallest_range f); split; [|split; [lra|]]; destruct f; unfold unit_roundoff, exp_error.
  all: generalize (P 24%nat) (P 53%nat); lra.
Qed.

(** Exact arithmetic is one of the machines: the hypotheses of the theorem do not contradict each other. *)

Lemma rounds_exact : forall u tau x, 0 <= u -> 0 <= tau -> rounds u tau x x.
Proof. intros u tau x U T; exists 0, 0; rewrite Rabs_R0; repeat split; [exact U|exact T|ring]. Qed.

Lemma reads_exact : forall tau x, reads tau x x.
Proof. intros tau x; left; reflexivity. Qed.

Lemma affine_exact : forall u tau k c x, 0 <= u -> 0 <= tau -> affine u tau k c x (k * x + c).
Proof.
  intros u tau k c x U T; exists x; split; [apply reads_exact|left; split; [apply rounds_exact; assumption|]].
  intros _ C; rewrite C; replace (k * x + 0 - k * x) with 0 by ring; rewrite Rabs_R0; exact T.
Qed.

Lemma total_exact : forall u tau l, 0 <= u -> 0 <= tau -> l <> [] -> total u tau l (sum (fun x => x) l).
Proof.
  intros u tau l U T N; destruct l as [|x l]; [congruence|clear N]; revert x; induction l as [|b l IH]; intros x.
  - simpl; rewrite Rplus_0_r; apply total_one.
  - apply (total_add u tau [x] (b :: l) _ x x (sum (fun x => x) (b :: l)) (sum (fun x => x) (b :: l)));
      [apply total_one|apply IH|apply Permutation_refl|apply reads_exact|apply reads_exact|].
    apply rounds_exact; assumption.
Qed.

Lemma greatest : forall (A : Type) (f : A -> R) l, l <> [] -> exists m, In m (map f l) /\ forall x, In x l -> f x <= m.
Proof.
  intros A f l N; destruct l as [|a l]; [congruence|clear N]; revert a; induction l as [|b l IH]; intros a.
  - exists (f a); split; [left; reflexivity|intros x [<-|[]]; lra].
  - destruct (IH b) as (m & I & M); destruct (Rle_or_lt (f a) m) as [L|L].
    + exists m; split; [right; exact I|intros x [<-|X]; [exact L|apply M, X]].
    + exists (f a); split; [left; reflexivity|intros x [<-|X]; [lra|generalize (M x X); lra]].
Qed.

Theorem exact_runs : forall u tau E gated gain offset keys s, 0 <= u -> 0 <= tau -> 0 <= E -> keys <> [] ->
  (gated = false -> forall k, In k keys -> own k = 0) ->
  runs_head u tau E gated gain offset keys s (exact_head gain offset keys s).
Proof.
  intros u tau E gated gain offset keys s U T HE N O; set (x := gain * s + offset).
  destruct (greatest _ (score x) keys N) as (m & Mi & Mm).
  set (ex := fun k => exp (score x k - m)); set (S := sum ex keys).
  set (term := fun k => ex k / S * value s k).
  set (r := fun k => Run k (score x k) (score x k - m) (ex k) (ex k / S) (value s k) (term k)).
  exists x, m, S, (map r keys); rewrite !map_map; cbn [of z d e w v t r].
  split; [apply map_id|]; split; [apply affine_exact; assumption|]; split; [exact Mi|].
  split; [intros q Q; apply in_map_iff in Q; destruct Q as (k & <- & K); apply Mm, K|].
  split; [|split].
  - intros q Q; apply in_map_iff in Q; destruct Q as (k & <- & K); unfold runs_key, r; cbn [of z d e w v t].
    split; [apply affine_exact; assumption|].
    split; [exists (score x k), m; split; [apply reads_exact|split; [apply reads_exact|apply rounds_exact; assumption]]|].
    split; [exists (score x k - m), 0, 0; rewrite Rabs_R0; split; [apply reads_exact|]; split; [exact HE|]; split; [lra|unfold ex; ring]|].
    split; [exists (ex k), S; split; [apply reads_exact|]; split; [apply reads_exact|left; apply rounds_exact; assumption]|].
    split; [destruct gated; [apply affine_exact; assumption|unfold value; rewrite (O eq_refl k K); ring]|].
    exists (ex k / S), (value s k); split; [apply reads_exact|]; split; [destruct gated; [apply reads_exact|reflexivity]|].
    apply rounds_exact; assumption.
  - unfold S; replace (sum ex keys) with (sum (fun y => y) (map ex keys)) by apply sum_map.
    apply total_exact; try assumption; intros H; apply map_eq_nil in H; contradiction.
  - replace (exact_head gain offset keys s) with (sum (fun y => y) (map term keys)).
    + apply total_exact; try assumption; intros H; apply map_eq_nil in H; contradiction.
    + rewrite sum_map; unfold exact_head, term; fold x.
      assert (X : forall k, exp (score x k) = exp m * ex k) by (intros k; unfold ex; rewrite <- exp_plus; f_equal; ring).
      rewrite (sum_ext (fun k => exp (score x k)) (fun k => exp m * ex k)) by (intros; apply X).
      rewrite (sum_ext (fun k => exp (score x k) * value s k) (fun k => exp m * (ex k * value s k)))
        by (intros k _; rewrite X; ring).
      rewrite !sum_scale; fold S; unfold Rdiv; rewrite Rinv_mult.
      replace (exp m * sum (fun k => ex k * value s k) keys * (/ exp m * / S))
        with (exp m * / exp m * (/ S * sum (fun k => ex k * value s k) keys)) by ring.
      rewrite Rinv_r, Rmult_1_l, <- sum_scale by apply Rgt_not_eq, exp_pos; apply sum_ext; intros; ring.
Qed.
